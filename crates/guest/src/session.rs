//! The rules of the stream, as the host keeps them: which frames may come now, and what may be sent.
//!
//! It is bytes in and bytes out; who calls it moves them.
//!
//! **Invariant:** what the guest makes it keep is bounded: one unfinished frame, and a window for each output
//! of each channel that was opened from outside.

mod said;

pub use said::{Said, Start, Violation};

use crate::frame::{
    Credit, Exec, HEADER_BYTES, Header, Limits, MOST_CHANNELS, OUTPUT, PAYLOAD_BYTES, Person, Report,
    Request, SEED_BYTES, Size, Tree, WINDOW_BYTES,
};
use std::collections::{BTreeMap, VecDeque};

/// Above this no more input and no more credit is written: the guest does not read.
const OUTBOX_BYTES: usize = 256 * 1024;

/// The host's end of the stream.
#[derive(Debug)]
pub struct Session {
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    sent: usize,
    channels: BTreeMap<u32, Channel>,
    next: u32,
    nonce: u64,
    greeted: bool,
    said: VecDeque<Said>,
}

#[derive(Debug)]
struct Channel {
    kind: Kind,
    phase: Phase,
    /// Bytes that may be sent inward. `None`: no more may.
    input: Option<u32>,
    /// [`OUTPUT`] and `ERROR`.
    outputs: [Output; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Command,
    Tunnel,
    Put,
    Get,
    Question,
    Meters,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The guest has not answered.
    Asked,
    Open,
    /// A command that has ended, whose outputs may go on.
    Ended,
    /// We want no more of it, and it has not heard of that yet.
    Released,
    /// The guest has forgotten it. What it sent may still be here.
    Closed,
}

/// One stream outward.
#[derive(Debug)]
struct Output {
    bytes: VecDeque<u8>,
    /// What the guest may still send.
    window: u32,
    /// Taken, and not yet said.
    unsaid: u32,
    open: bool,
    /// Nobody here wants it.
    refused: bool,
}

// === impl Session ===

impl Session {
    /// Greets. `nonce` should never repeat: an answer to another greeting is not taken.
    #[must_use]
    pub fn new(nonce: u64) -> Self {
        let mut outbox = Vec::new();
        Request::Hello { nonce }.print(&mut outbox);
        Self {
            inbox: Vec::new(),
            outbox,
            sent: 0,
            channels: BTreeMap::new(),
            next: 1,
            nonce,
            greeted: false,
            said: VecDeque::new(),
        }
    }

    /// Takes bytes that the guest sent.
    ///
    /// # Errors
    /// What the guest did. Nothing that it says can be trusted after that.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Violation> {
        // Whole frames are taken where they are; only one that is cut is kept.
        if !self.inbox.is_empty() {
            let mut inbox = std::mem::take(&mut self.inbox);
            inbox.extend_from_slice(bytes);
            let taken = self.take_frames(&inbox)?;
            inbox.drain(..taken);
            self.inbox = inbox;
            return Ok(());
        }
        let taken = self.take_frames(bytes)?;
        bytes = bytes.get(taken..).unwrap_or_default();
        self.inbox.extend_from_slice(bytes);
        Ok(())
    }

    fn take_frames(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let mut taken = 0;
        while let Some((head, rest)) =
            bytes.get(taken..).and_then(|rest| rest.split_first_chunk::<HEADER_BYTES>())
        {
            let header = Header::parse(head).ok_or(Violation::NotOurs)?;
            let Some(payload) = usize::try_from(header.length).ok().and_then(|length| rest.get(..length))
            else {
                break;
            };
            let report = Report::parse(&header, payload).ok_or(Violation::NotOurs)?;
            self.take(&report)?;
            taken += HEADER_BYTES + payload.len();
        }
        Ok(taken)
    }

    fn take(&mut self, report: &Report<'_>) -> Result<(), Violation> {
        if let Report::Hello { nonce } = *report {
            if self.greeted || nonce != self.nonce {
                return Err(Violation::Greeting);
            }
            self.greeted = true;
            self.said.push_back(Said::Ready);
            return Ok(());
        }
        if !self.greeted {
            return Err(Violation::Greeting);
        }
        let number = subject(report);
        let channel = self.channels.get_mut(&number).filter(|channel| channel.phase != Phase::Closed);
        let said = channel.ok_or(Violation::Unknown)?.take(number, report)?;
        self.said.extend(said);
        self.drop_if_empty(number);
        Ok(())
    }

    /// The next thing that the guest said.
    pub fn next_said(&mut self) -> Option<Said> {
        self.said.pop_front()
    }

    /// Bytes to be sent to the guest.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        self.outbox.get(self.sent..).unwrap_or_default()
    }

    /// So many of them were sent.
    pub fn sent(&mut self, count: usize) {
        self.sent = self.sent.saturating_add(count);
        if self.sent >= self.outbox.len() {
            self.outbox.clear();
            self.sent = 0;
        } else if self.sent > OUTBOX_BYTES {
            self.outbox.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Whether the guest reads what it is sent.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.pending().len() < OUTBOX_BYTES
    }

    fn open(&mut self, kind: Kind) -> Option<u32> {
        if self.channels.len() >= MOST_CHANNELS {
            return None;
        }
        let number = self.next;
        // 4 billion commands in one guest: no number is used twice.
        self.next = self.next.checked_add(1)?;
        let input = matches!(kind, Kind::Command | Kind::Tunnel | Kind::Put).then_some(WINDOW_BYTES);
        let outputs = [kind != Kind::Put, kind == Kind::Command].map(Output::new);
        self.channels.insert(number, Channel { kind, phase: Phase::Asked, input, outputs });
        Some(number)
    }

    /// Asks for a command. `None`: as many channels are open as may be.
    pub fn exec(&mut self, start: &Start<'_>) -> Option<u32> {
        let Start { terminal, once, argc, envc, block, person, limits: wished } = *start;
        let channel = self.open(Kind::Command)?;
        if terminal.is_some()
            && let Some(Channel { outputs: [_, error], .. }) = self.channels.get_mut(&channel)
        {
            error.open = false;
        }
        let mut printed = Vec::new();
        Limits::write(wished, &mut printed);
        let limits = Limits::of(&printed).unwrap_or(Limits::NONE);
        let length = u32::try_from(block.len()).unwrap_or(u32::MAX);
        let exec = Exec { terminal, once, argc, envc, length, person, limits };
        self.say(&Request::Exec { channel, exec });
        for bytes in block.chunks(PAYLOAD_BYTES) {
            self.say(&Request::Block { channel, bytes });
        }
        Some(channel)
    }

    /// Asks for a connection to a port on the guest's loopback.
    pub fn dial(&mut self, port: u16) -> Option<u32> {
        let channel = self.open(Kind::Tunnel)?;
        self.say(&Request::Dial { channel, port });
        Some(channel)
    }

    /// Begins to send files, as entries on the channel's input.
    pub fn put(&mut self, path: &[u8], owner: Option<Person>) -> Option<u32> {
        let channel = self.open(Kind::Put)?;
        self.say(&Request::Put { channel, owner, path });
        Some(channel)
    }

    /// Asks for files, as entries on the channel's output.
    pub fn get(&mut self, path: &[u8], tree: Tree) -> Option<u32> {
        let channel = self.open(Kind::Get)?;
        self.say(&Request::Get { channel, tree, path });
        Some(channel)
    }

    /// Asks the guest to be ready to be frozen.
    pub fn prepare(&mut self) -> Option<u32> {
        let channel = self.open(Kind::Question)?;
        self.say(&Request::Prepare { channel });
        Some(channel)
    }

    /// Tells a guest that goes on what time it is, and gives it randomness.
    pub fn thaw(&mut self, unix_ns: u64, seed: &[u8; SEED_BYTES]) -> Option<u32> {
        let channel = self.open(Kind::Question)?;
        self.say(&Request::Thaw { channel, unix_ns, seed });
        Some(channel)
    }

    /// Asks what the guest has used.
    pub fn meters(&mut self) -> Option<u32> {
        let channel = self.open(Kind::Meters)?;
        self.say(&Request::Meters { channel });
        Some(channel)
    }

    /// Sends a signal (1 to 64) to a command's process group.
    pub fn signal(&mut self, channel: u32, signal: u8) {
        self.say(&Request::Signal { channel, signal });
    }

    pub fn resize(&mut self, channel: u32, size: Size) {
        self.say(&Request::Resize { channel, size });
    }

    /// Ends every process of the guest but its first.
    pub fn kill_all(&mut self) {
        self.say(&Request::KillAll);
    }

    /// How many bytes of input may be sent now. `None`: the guest takes no more, ever.
    #[must_use]
    pub fn may_send(&self, channel: u32) -> Option<usize> {
        let credit = self.channels.get(&channel)?.input?;
        let room = if self.has_room() { PAYLOAD_BYTES } else { 0 };
        Some(room.min(usize::try_from(credit).unwrap_or(room)))
    }

    /// Sends input, at most as much as [`Session::may_send`] says.
    pub fn input(&mut self, channel: u32, bytes: &[u8]) {
        let Some(Channel { input: Some(credit), .. }) = self.channels.get_mut(&channel) else { return };
        let most = bytes.len().min(PAYLOAD_BYTES);
        let count = u32::try_from(most).unwrap_or(u32::MAX).min(*credit);
        *credit -= count;
        let bytes = bytes.get(..usize::try_from(count).unwrap_or(0)).unwrap_or_default();
        if !bytes.is_empty() {
            self.say(&Request::Data { channel, bytes });
        }
    }

    /// There is no more input.
    pub fn end_input(&mut self, channel: u32) {
        let open = self.channels.get_mut(&channel).is_some_and(|channel| channel.input.take().is_some());
        if open {
            self.say(&Request::End { channel });
        }
    }

    /// What came on a stream and was not taken, as far as it lies in one piece.
    #[must_use]
    pub fn output(&self, channel: u32, stream: u8) -> &[u8] {
        self.stream(channel, stream).map_or(&[], |output| output.bytes.as_slices().0)
    }

    /// Whether a stream is at its end, and everything of it was taken.
    #[must_use]
    pub fn is_over(&self, channel: u32, stream: u8) -> bool {
        self.stream(channel, stream).is_none_or(|output| !output.open && output.bytes.is_empty())
    }

    fn stream(&self, channel: u32, stream: u8) -> Option<&Output> {
        self.channels.get(&channel)?.outputs.get(usize::from(stream.checked_sub(OUTPUT)?))
    }

    /// So many bytes of a stream were taken.
    pub fn took(&mut self, channel: u32, stream: u8, count: usize) {
        let room = self.has_room();
        let place = usize::from(stream.wrapping_sub(OUTPUT));
        let Some(output) = self.channels.get_mut(&channel).and_then(|open| open.outputs.get_mut(place))
        else {
            return;
        };
        let count = count.min(output.bytes.len());
        output.bytes.drain(..count);
        output.unsaid = output.unsaid.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        // A guest that does not read what it is sent gets no credit either: what is written for it is bounded.
        if output.open && room && output.unsaid >= WINDOW_BYTES / 2 {
            let bytes = std::mem::take(&mut output.unsaid);
            output.window = output.window.saturating_add(bytes);
            self.say(&Request::Credit(Credit { channel, stream, bytes }));
        }
        self.drop_if_empty(channel);
    }

    /// Nobody wants that stream of a command any more.
    pub fn close(&mut self, channel: u32, stream: u8) {
        let place = usize::from(stream.wrapping_sub(OUTPUT));
        let Some(output) = self.channels.get_mut(&channel).and_then(|open| open.outputs.get_mut(place))
        else {
            return;
        };
        output.bytes = VecDeque::new();
        if output.open && !std::mem::replace(&mut output.refused, true) {
            self.say(&Request::Close { channel, stream });
        }
        self.drop_if_empty(channel);
    }

    /// Nobody wants that connection, or that tree, any more.
    pub fn release(&mut self, number: u32) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        for output in &mut channel.outputs {
            output.bytes = VecDeque::new();
            output.refused = true;
        }
        if !matches!(channel.phase, Phase::Closed | Phase::Released) {
            channel.phase = Phase::Released;
            channel.input = None;
            self.say(&Request::Release { channel: number });
        }
        self.drop_if_empty(number);
    }

    /// The guest is gone: what it had sent can still be taken, and no more comes.
    pub fn abandon(&mut self) {
        self.inbox = Vec::new();
        self.outbox = Vec::new();
        self.sent = 0;
        for channel in self.channels.values_mut() {
            channel.phase = Phase::Closed;
            channel.input = None;
            channel.outputs.iter_mut().for_each(|output| output.open = false);
        }
        self.channels.retain(|_, channel| channel.outputs.iter().any(|output| !output.bytes.is_empty()));
    }

    /// Whether anything of a channel is still to come or to be taken.
    #[must_use]
    pub fn is_open(&self, channel: u32) -> bool {
        self.channels.contains_key(&channel)
    }

    fn drop_if_empty(&mut self, number: u32) {
        let empty = |channel: &Channel| {
            channel.phase == Phase::Closed && channel.outputs.iter().all(|output| output.bytes.is_empty())
        };
        if self.channels.get(&number).is_some_and(empty) {
            self.channels.remove(&number);
        }
    }

    fn say(&mut self, request: &Request<'_>) {
        request.print(&mut self.outbox);
    }
}

/// What a report is about.
const fn subject(report: &Report<'_>) -> u32 {
    match *report {
        Report::Hello { .. } => 0,
        Report::Started { channel, .. }
        | Report::NotStarted { channel, .. }
        | Report::Ended { channel, .. }
        | Report::Data { channel, .. }
        | Report::End { channel, .. }
        | Report::Credit(Credit { channel, .. })
        | Report::Close { channel }
        | Report::Dialled { channel }
        | Report::Done { channel }
        | Report::Failed { channel, .. }
        | Report::Metered { channel, .. } => channel,
    }
}

// === impl Channel ===

impl Channel {
    /// Takes one report about it, if it may come now.
    fn take(&mut self, channel: u32, report: &Report<'_>) -> Result<Option<Said>, Violation> {
        use Kind::{Command, Get, Meters, Put, Question, Tunnel};
        use Phase::{Asked, Closed, Open, Released};
        let said = match (*report, self.kind, self.phase) {
            (Report::Started { pid, .. }, Command, Asked) => {
                self.phase = Open;
                Said::Started { channel, pid }
            }
            (Report::NotStarted { stage, errno, .. }, Command, Asked) => {
                self.shut();
                Said::NotStarted { channel, stage, errno }
            }
            (Report::Ended { ended, .. }, Command, Open) => {
                self.phase = Phase::Ended;
                self.input = None;
                self.close_if_over();
                Said::Ended { channel, ended }
            }
            (Report::Dialled { .. }, Tunnel, Asked) => {
                self.phase = Open;
                Said::Dialled { channel }
            }
            (Report::Done { .. }, _, Released) => {
                self.shut();
                return Ok(None);
            }
            (Report::Done { .. }, Put, _) if self.input.is_none() => self.done(channel),
            (Report::Done { .. }, Get | Question, _) => self.done(channel),
            (Report::Done { .. }, Tunnel, Open) => self.done(channel),
            (Report::Failed { .. }, Tunnel | Put | Get, Released) => {
                self.shut();
                return Ok(None);
            }
            (Report::Failed { errno, .. }, Tunnel | Put | Get | Question, _) => {
                self.shut();
                Said::Failed { channel, errno }
            }
            (Report::Metered { meters, .. }, Meters, Asked) => {
                self.shut();
                Said::Metered { channel, meters }
            }
            (Report::Data { stream, bytes, .. }, ..) => {
                self.output(stream)?.accept(bytes)?;
                return Ok(None);
            }
            (Report::End { stream, .. }, Command | Tunnel, _) => {
                self.output(stream)?.open = false;
                self.close_if_over();
                return Ok(None);
            }
            (Report::Credit(credit), Command | Tunnel | Put, _) => {
                self.credit(credit)?;
                return Ok(None);
            }
            // Said once; where we had ended it ourselves, it is no news.
            (Report::Close { .. }, Command | Tunnel, Open) => {
                return Ok(self.input.take().map(|_| Said::InputClosed { channel }));
            }
            (Report::Close { .. }, Tunnel, Released) => return Ok(None),
            (_, _, Asked | Open | Phase::Ended | Released | Closed) => return Err(Violation::Order),
        };
        Ok(Some(said))
    }

    /// A stream that the guest may send on now.
    fn output(&mut self, stream: u8) -> Result<&mut Output, Violation> {
        let speaking = match self.kind {
            Kind::Get => true,
            Kind::Command | Kind::Tunnel => self.phase != Phase::Asked,
            Kind::Put | Kind::Question | Kind::Meters => false,
        };
        let place = usize::from(stream.wrapping_sub(OUTPUT));
        let output = self.outputs.get_mut(place).filter(|output| speaking && output.open);
        output.ok_or(Violation::Order)
    }

    fn credit(&mut self, credit: Credit) -> Result<(), Violation> {
        // One for input that we have ended, or that is released, was on its way.
        let Some(left) = &mut self.input else {
            return if self.phase == Phase::Ended { Err(Violation::Order) } else { Ok(()) };
        };
        *left =
            left.checked_add(credit.bytes).filter(|sum| *sum <= WINDOW_BYTES).ok_or(Violation::TooMuch)?;
        Ok(())
    }

    fn done(&mut self, channel: u32) -> Said {
        self.shut();
        Said::Done { channel }
    }

    /// The guest has forgotten it.
    fn shut(&mut self) {
        self.phase = Phase::Closed;
        self.input = None;
        self.outputs.iter_mut().for_each(|output| output.open = false);
    }

    /// A command is over with its last stream.
    fn close_if_over(&mut self) {
        if self.phase == Phase::Ended && self.outputs.iter().all(|output| !output.open) {
            self.phase = Phase::Closed;
        }
    }
}

// === impl Output ===

impl Output {
    const fn new(open: bool) -> Self {
        Self { bytes: VecDeque::new(), window: WINDOW_BYTES, unsaid: 0, open, refused: false }
    }

    fn accept(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let count = u32::try_from(bytes.len()).map_err(|_| Violation::TooMuch)?;
        self.window = self.window.checked_sub(count).ok_or(Violation::TooMuch)?;
        if !self.refused {
            self.bytes.extend(bytes);
        }
        Ok(())
    }
}
