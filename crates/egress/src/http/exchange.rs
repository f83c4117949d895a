//! One request and its answer: cleared, carried to the server and back, and ended.

use super::answer::{Answer, Fault, Form};
use super::credentials::{Mask, Scan, Secrets, Whole};
use super::flow::{Broken, Pass, Sink, Source, Stop, pump};
use super::framing::Length;
use super::upstream::{self, About, Link, One, Reply, Two};
use super::{Forward, hop, http2};
use crate::tape::Tape;
use crate::wall::{Asked, Cleared, DialError, End, Via, Wall};
use bytes::Bytes;
use fumehood_model::egress::{Denial, Identity, Request, UrlPath};
use fumehood_vault::secret::SecretName;
use http::header::{IF_RANGE, RANGE};
use http::{HeaderMap, Method, StatusCode};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::future::pending;

/// A request that was read, addressed, and not yet judged.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) identity: Identity,
    pub(crate) via: Via,
    pub(crate) method: Method,
    pub(crate) path: UrlPath,
    /// Without those that are about one connection.
    pub(crate) fields: HeaderMap,
    pub(crate) length: Length,
    /// Whether the client speaks HTTP/2.
    pub(crate) http2: bool,
    pub(crate) form: Form,
    /// What is sent in place of the path as it was judged, once a secret may be in its query.
    pub(crate) target: Option<String>,
}

/// The side that asked, as far as it is written to.
pub(crate) trait Client: Sink {
    /// Tells a client that waits with its body to send it.
    async fn proceed(&mut self) -> Result<(), Broken>;

    /// Sends the head of the server's answer.
    async fn respond(&mut self, status: StatusCode, fields: HeaderMap, length: Length) -> Result<(), Broken>;

    /// Takes back an answer of which nothing has left yet. Whether that was so.
    fn take_back(&mut self) -> bool;

    /// Sends an answer of ours.
    async fn answer(&mut self, answer: Answer) -> Result<(), Broken>;
}

/// How an exchange left the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// With a whole answer.
    Answered,
    /// In the middle of one: its connection, or stream, has to be cut so that it knows.
    Cut,
}

/// Why an exchange did not go through.
#[derive(Debug)]
pub(crate) enum Failure {
    Denied(Denial),
    Fault(Fault),
    Client(Broken),
}

/// What was moved so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) out: Cell<u64>,
    pub(crate) in_: Cell<u64>,
    /// Set once the client has the head of the answer.
    pub(crate) status: Cell<Option<u16>>,
    address: Cell<Option<std::net::IpAddr>>,
    /// Whether the request's body was sent to its end.
    sent: Cell<bool>,
    /// The secrets whose values came back.
    masked: RefCell<BTreeSet<String>>,
}

/// The parts of an exchange that both directions need.
pub(crate) struct Turn<'a, W> {
    pub(crate) wall: &'a W,
    pub(crate) secrets: &'a Secrets,
    pub(crate) cleared: &'a Cleared,
    pub(crate) tally: &'a Tally,
}

/// The client: where its request's body comes from, and where its answer goes.
pub(super) struct Ends<'a, S, C> {
    pub(super) source: &'a mut S,
    pub(super) client: &'a mut C,
}

/// Counts what leaves, and looks for placeholders in it.
struct Outward<'a, W> {
    turn: &'a Turn<'a, W>,
    scan: Scan,
    given: Option<Bytes>,
}

/// Counts what comes, and masks secrets in it.
struct Inward<'a, W> {
    turn: &'a Turn<'a, W>,
    mask: Mask,
}

// === impl Ask ===

impl Ask {
    pub(crate) fn request(&self) -> Request<'_> {
        Request { method: self.method.as_str(), path: &self.path }
    }

    pub(crate) fn asked(&self) -> Asked<'_> {
        Asked { identity: &self.identity, request: Some(self.request()), via: self.via }
    }

    pub(crate) fn target(&self) -> &str {
        self.target.as_deref().unwrap_or(self.path.sent())
    }

    /// Whether sending it twice does what sending it once does, and nothing of it would be missing.
    fn can_be_sent_again(&self) -> bool {
        self.method.is_idempotent() && self.length.is_empty()
    }
}

// === impl Forward ===

impl<W: Wall> Forward<W> {
    /// Carries a request through the wall, and its answer back.
    pub(crate) async fn exchange<S: Source, C: Client>(
        &self,
        mut ask: Ask,
        source: &mut S,
        client: &mut C,
    ) -> Left {
        if let Some(denial) = hop::overrides(&ask.fields) {
            let denial = self.wall().refuse(ask.asked(), denial).await;
            return self.deny(&ask, &denial, client).await;
        }
        let cleared = match self.wall().clear(ask.asked()).await {
            Ok(cleared) => cleared,
            Err(denial) => return self.deny(&ask, &denial, client).await,
        };
        let tally = Tally::default();
        let turn = Turn { wall: self.wall(), secrets: self.secrets(), cleared: &cleared, tally: &tally };
        let ends = Ends { source, client: &mut *client };
        let carried = match self.tape() {
            Tape::Off => self.carry(&turn, &mut ask, ends).await,
            // Boxed: what is not asked for takes no room.
            Tape::Keep(tape) => Box::pin(self.keep(&turn, &mut ask, ends, tape)).await,
            Tape::Play(tape) => Box::pin(self.play(&turn, &ask, ends, tape)).await,
        };
        let left = match &carried {
            Ok(()) => Left::Answered,
            Err(failure) => self.fail(&ask, failure, &tally, client).await,
        };
        let fault = carried.err().map(|failure| failure.to_string());
        self.wall().end(cleared, tally.end(fault)).await;
        left
    }

    /// Answers with a denial that is recorded already.
    pub(crate) async fn deny<C: Client>(&self, ask: &Ask, denial: &Denial, client: &mut C) -> Left {
        let answer = Answer::denied(denial, &ask.identity, Some(ask.request()), ask.form);
        sent(client.answer(answer).await)
    }

    /// Tells the client why, while there is a way to.
    pub(crate) async fn fail<C: Client>(
        &self,
        ask: &Ask,
        failure: &Failure,
        tally: &Tally,
        client: &mut C,
    ) -> Left {
        let answer = match failure {
            // What the wall said itself is recorded by it.
            Failure::Denied(
                denial @ (Denial::Placeholder { .. } | Denial::Secret { .. } | Denial::NotOnTape),
            ) => {
                let denial = self.wall().refuse(ask.asked(), denial.clone()).await;
                Answer::denied(&denial, &ask.identity, Some(ask.request()), ask.form)
            }
            Failure::Denied(denial) | Failure::Fault(Fault::Dial(DialError::Denied(denial))) => {
                Answer::denied(denial, &ask.identity, Some(ask.request()), ask.form)
            }
            Failure::Fault(fault) => Answer::fault(fault, &ask.identity, ask.form),
            Failure::Client(_) => return Left::Cut,
        };
        if tally.status.get().is_some() && !client.take_back() {
            return Left::Cut;
        }
        tally.status.set(Some(answer.status.as_u16()));
        sent(client.answer(answer).await)
    }

    pub(super) async fn carry<S: Source, C: Client>(
        &self,
        turn: &Turn<'_, W>,
        ask: &mut Ask,
        ends: Ends<'_, S, C>,
    ) -> Result<(), Failure> {
        let Ends { source, client } = ends;
        if turn.cleared.binding().is_some() {
            // The body may have to be read before its head can be sent.
            client.proceed().await.map_err(Failure::Client)?;
        }
        if turn.wall.gives_secrets(turn.cleared.host()) {
            // A value that comes back in two parts would be seen in neither. A server may always send the whole.
            ask.fields.remove(RANGE);
            ask.fields.remove(IF_RANGE);
        }
        let first = turn.secrets.prepare(turn.cleared, ask, source).await?;
        let mut source = Whole { first, source };
        let mut ends = Ends { source: &mut source, client };
        let (link, is_used) = self.link(turn.cleared, ask.http2).await?;
        let carried = self.over(turn, link, ask, &mut ends).await;
        let again = match &carried {
            Err(Failure::Fault(Fault::NotSent(_))) => true,
            Err(Failure::Fault(Fault::NoAnswer | Fault::Broken(_))) => ask.can_be_sent_again(),
            Ok(()) | Err(_) => false,
        };
        if !is_used || !again || turn.tally.status.get().is_some() {
            return carried;
        }
        let link = self.connect(turn.cleared, ask.http2).await?;
        self.over(turn, link, ask, &mut ends).await
    }

    /// A connection to where something was cleared to, and whether it was used before.
    async fn link(&self, cleared: &Cleared, http2: bool) -> Result<(Link, bool), Failure> {
        let identity = cleared.identity();
        if let Some(link) = self.pool().take(identity, http2).await {
            return Ok((link, true));
        }
        if !http2 {
            return Ok((self.connect(cleared, http2).await?, false));
        }
        // Requests that come together share what the first of them makes.
        let first = self.pool().first(identity);
        let held = first.lock().await;
        if let Some(link) = self.pool().take(identity, http2).await {
            return Ok((link, true));
        }
        if self.pool().speaks_one(identity) {
            // Nothing can be shared: nobody needs to wait for anybody.
            drop(held);
        }
        Ok((self.connect(cleared, http2).await?, false))
    }

    /// A new connection to where something was cleared to.
    pub(crate) async fn connect(&self, cleared: &Cleared, http2: bool) -> Result<Link, Failure> {
        let dialled = self.wall().dial(cleared).await.map_err(|error| Failure::Fault(Fault::Dial(error)))?;
        let link = upstream::establish(self.servers(), cleared.identity(), dialled, http2).await;
        let link = link.map_err(Failure::Fault)?;
        match &link {
            Link::Two(two) => self.pool().keep_two(cleared.identity(), two),
            Link::One(_) if http2 => self.pool().note_one(cleared.identity()),
            Link::One(_) => {}
        }
        Ok(link)
    }

    async fn over<S: Source, C: Client>(
        &self,
        turn: &Turn<'_, W>,
        link: Link,
        ask: &Ask,
        ends: &mut Ends<'_, S, C>,
    ) -> Result<(), Failure> {
        let about = match &link {
            Link::One(one) => one.about,
            Link::Two(two) => two.about,
        };
        turn.tally.address.set(about.address);
        self.ready(turn, ask, &about)?;
        ends.client.proceed().await.map_err(Failure::Client)?;
        let carried = match link {
            Link::One(one) => self.over_one(turn, one, ask, ends).await,
            Link::Two(two) => self.over_two(turn, two, ask, ends).await,
        };
        carried.map_err(|failure| failure.explained(&about, turn.tally))
    }

    /// Sees that a secret goes to nobody who has not shown who it is, and counts the head.
    pub(crate) fn ready(&self, turn: &Turn<'_, W>, ask: &Ask, about: &About) -> Result<(), Failure> {
        if let Some(binding) = turn.cleared.binding()
            && !about.certified
        {
            let why = "the connection is not verified TLS".to_owned();
            return Err(Failure::Denied(Denial::Secret { secret: binding.secret.clone(), why }));
        }
        let bytes = ask.method.as_str().len() + ask.target().len() + field_bytes(&ask.fields);
        turn.count_out(bytes).map_err(Failure::Denied)
    }

    async fn over_one<S: Source, C: Client>(
        &self,
        turn: &Turn<'_, W>,
        mut one: Box<One>,
        ask: &Ask,
        ends: &mut Ends<'_, S, C>,
    ) -> Result<(), Failure> {
        one.ask(ask);
        let (mut reply, writer) = one.halves();
        converse(turn, &ask.method, (&mut *ends.source, writer), (&mut reply, &mut *ends.client)).await?;
        if turn.tally.sent.get() && reply.is_reusable() {
            self.pool().keep_one(&ask.identity, one);
        }
        Ok(())
    }

    async fn over_two<S: Source, C: Client>(
        &self,
        turn: &Turn<'_, W>,
        two: Two,
        ask: &Ask,
        ends: &mut Ends<'_, S, C>,
    ) -> Result<(), Failure> {
        let (mut sink, mut reply) = http2::send(two, ask).await.map_err(|broken| {
            self.pool().forget_twos(&ask.identity);
            Failure::Fault(Fault::NotSent(broken))
        })?;
        let carried =
            converse(turn, &ask.method, (&mut *ends.source, &mut sink), (&mut reply, &mut *ends.client))
                .await;
        if matches!(&carried, Err(Failure::Fault(Fault::Broken(broken))) if broken.ends_connection()) {
            self.pool().forget_twos(&ask.identity);
        }
        carried
    }
}

/// Moves the request's body up and the answer down, at the same time: an answer may come before the
/// body is at its end, and it is what counts.
pub(crate) async fn converse<W: Wall, S: Source, K: Sink, R: Reply, C: Client>(
    turn: &Turn<'_, W>,
    method: &Method,
    (source, up): (&mut S, &mut K),
    (reply, client): (&mut R, &mut C),
) -> Result<(), Failure> {
    let upload = async {
        match pump(source, up, &mut Outward { turn, scan: turn.secrets.scan(), given: None }).await {
            Ok(()) => {
                turn.tally.sent.set(true);
                source.gone().await;
                Failure::Client(Broken::Closed)
            }
            Err(Stop::Source(broken) | Stop::Sink(broken @ Broken::Malformed(_))) => Failure::Client(broken),
            Err(Stop::Denied(denial)) => Failure::Denied(denial),
            // A server that takes no more may have answered, or does not: the other direction tells.
            Err(Stop::Sink(_)) => pending().await,
        }
    };
    let download = async {
        let (status, fields, length) = tokio::select! {
            head = reply.head(method) => head.map_err(Failure::Fault)?,
            () = gone(client) => return Err(Failure::Client(Broken::Closed)),
        };
        receive(turn, method, (status, fields, length), reply, client).await
    };
    tokio::select! {
        biased;
        done = download => done,
        failure = upload => Err(failure),
    }
}

/// Sends an answer on to the client: head, body, and what follows.
pub(crate) async fn receive<W: Wall, R: Source, C: Client>(
    turn: &Turn<'_, W>,
    method: &Method,
    (status, mut fields, mut length): (StatusCode, HeaderMap, Length),
    reply: &mut R,
    client: &mut C,
) -> Result<(), Failure> {
    hop::strip_response(method, status, &mut fields);
    let binding = turn.cleared.binding();
    let until_close = length == Length::UntilClose;
    let mask = turn.secrets.mask(binding, status, &mut fields, &mut length).map_err(Failure::Denied)?;
    let mut pass = Inward { turn, mask };
    turn.count_in(field_bytes(&fields)).map_err(Failure::Denied)?;
    turn.tally.status.set(Some(status.as_u16()));
    client.respond(status, fields, length).await.map_err(Failure::Client)?;
    let mut pumped = pump(reply, client, &mut pass).await;
    if until_close && matches!(pumped, Err(Stop::Source(Broken::Closed))) {
        // It may be whole: many servers end so. What came is passed on, and then cut, for nobody knows.
        if let Err(stop) = pass_on(client, &mut pass).await {
            pumped = Err(stop);
        }
    }
    turn.tally.mask(pass.mask.found());
    pumped.map_err(|stop| match stop {
        Stop::Source(broken) => Failure::Fault(Fault::Broken(broken)),
        Stop::Sink(broken) => Failure::Client(broken),
        Stop::Denied(denial) => Failure::Denied(denial),
    })
}

/// Sends what is held, where no more comes.
async fn pass_on(client: &mut impl Sink, pass: &mut impl Pass) -> Result<(), Stop> {
    let rest = pass.rest()?;
    if !rest.is_empty() {
        client.data(rest).await.map_err(Stop::Sink)?;
    }
    client.flush().await.map_err(Stop::Sink)
}

async fn gone(client: &mut impl Sink) {
    std::future::poll_fn(|cx| client.poll_gone(cx)).await;
}

fn sent(result: Result<(), Broken>) -> Left {
    if result.is_ok() { Left::Answered } else { Left::Cut }
}

/// About what a head weighs.
fn field_bytes(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>() + 32
}

// === impl Tally ===

impl Tally {
    pub(crate) fn end(&self, fault: Option<String>) -> End {
        End {
            address: self.address.get(),
            status: self.status.get(),
            bytes_out: self.out.get(),
            bytes_in: self.in_.get(),
            fault,
            masked: self.masked.borrow().iter().cloned().collect(),
        }
    }

    /// Notes whose values came back and were masked.
    pub(crate) fn mask(&self, names: impl IntoIterator<Item = SecretName>) {
        self.masked.borrow_mut().extend(names.into_iter().map(|name| name.as_str().to_owned()));
    }

    /// Notes that the client has the head of the answer.
    pub(super) fn answered(&self, status: StatusCode) {
        self.status.set(Some(status.as_u16()));
    }

    pub(crate) fn met(&self, about: &About) {
        self.address.set(about.address);
    }
}

// === impl Turn ===

impl<W: Wall> Turn<'_, W> {
    pub(crate) fn count_out(&self, bytes: usize) -> Result<(), Denial> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.wall.count(self.cleared, bytes, 0)?;
        self.tally.out.set(self.tally.out.get().saturating_add(bytes));
        Ok(())
    }

    pub(crate) fn count_in(&self, bytes: usize) -> Result<(), Denial> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.wall.count(self.cleared, 0, bytes)?;
        self.tally.in_.set(self.tally.in_.get().saturating_add(bytes));
        Ok(())
    }
}

impl<W> fmt::Debug for Turn<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("cleared", self.cleared)
            .field("tally", self.tally)
            .finish_non_exhaustive()
    }
}

// === impl Outward ===

impl<W: Wall> Pass for Outward<'_, W> {
    fn give(&mut self, data: Bytes) -> Result<(), Stop> {
        self.scan.data(&data).map_err(Stop::Denied)?;
        self.turn.count_out(data.len()).map_err(Stop::Denied)?;
        self.given = Some(data);
        Ok(())
    }

    fn take(&mut self) -> Result<Option<Bytes>, Stop> {
        Ok(self.given.take())
    }

    fn pause(&mut self) -> Bytes {
        Bytes::new()
    }

    fn rest(&mut self) -> Result<Bytes, Stop> {
        Ok(Bytes::new())
    }

    fn trailers(&mut self, mut trailers: HeaderMap) -> Result<HeaderMap, Stop> {
        hop::strip_trailers(&mut trailers);
        self.scan.trailers(&trailers).map_err(Stop::Denied)?;
        self.turn.count_out(field_bytes(&trailers)).map_err(Stop::Denied)?;
        Ok(trailers)
    }
}

// === impl Inward ===

impl<W: Wall> Pass for Inward<'_, W> {
    fn give(&mut self, data: Bytes) -> Result<(), Stop> {
        self.turn.count_in(data.len()).map_err(Stop::Denied)?;
        self.mask.give(data);
        Ok(())
    }

    fn take(&mut self) -> Result<Option<Bytes>, Stop> {
        self.mask.take()
    }

    fn pause(&mut self) -> Bytes {
        self.mask.pause()
    }

    fn rest(&mut self) -> Result<Bytes, Stop> {
        self.mask.rest()
    }

    fn trailers(&mut self, mut trailers: HeaderMap) -> Result<HeaderMap, Stop> {
        hop::strip_trailers(&mut trailers);
        self.turn.tally.mask(self.turn.secrets.mask_fields(&mut trailers));
        self.turn.count_in(field_bytes(&trailers)).map_err(Stop::Denied)?;
        Ok(trailers)
    }
}

// === impl Failure ===

impl Failure {
    /// With the likely cause, where a server broke off after it had asked for a certificate.
    pub(crate) fn explained(self, about: &About, tally: &Tally) -> Self {
        match self {
            Self::Fault(
                Fault::NoAnswer | Fault::Broken(Broken::Closed | Broken::Io(_) | Broken::Http2(_)),
            ) if about.asked_for_certificate && tally.status.get().is_none() => {
                Self::Fault(Fault::ClientCertificate)
            }
            other @ (Self::Denied(_) | Self::Fault(_) | Self::Client(_)) => other,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(denial) => denial.fmt(f),
            Self::Fault(fault) => fault.fmt(f),
            Self::Client(broken) => write!(f, "the client broke off: {broken}"),
        }
    }
}
