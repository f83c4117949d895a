//! Where secrets touch requests and responses: after the decision was recorded, and nowhere else.
//!
//! What leaves is looked through for placeholders that nothing replaces; the value goes in last; what
//! comes back is looked through for values. Where a sandbox has no secret, none of it costs anything.

use super::exchange::{Ask, Failure};
use super::flow::{Broken, Frame, Source, Stop};
use super::framing::Length;
use crate::record::Renewed;
use crate::wall::Cleared;
use bytes::{Bytes, BytesMut};
use fumehood_model::egress::{Binding, Denial, Inject};
use fumehood_vault::decode::DecodeError;
use fumehood_vault::guard::{BodyScan, Guard, Misplaced};
use fumehood_vault::inject::{self, BODY_LIMIT_BYTES, Head, InjectError, Injection, Payload};
use fumehood_vault::mask::{MaskStream, Masker, Piece};
use fumehood_vault::placeholder::Shape;
use fumehood_vault::response::{BodyMask, ask_for_plain};
use fumehood_vault::secret::{Secret, SecretName};
use fumehood_vault::vault::{Vault, VaultError};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode, Uri};
use std::cell::RefCell;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};
use zeroize::Zeroizing;

/// The secrets of a sandbox, and what looks for them.
#[derive(Debug, Default)]
pub struct Secrets {
    vault: RefCell<Vault>,
    looking: RefCell<Option<Looking>>,
}

#[derive(Clone, Debug)]
struct Looking {
    masker: Masker,
    guard: Guard,
}

/// Looks for placeholders in a body that leaves.
#[derive(Debug, Default)]
pub(crate) struct Scan(Option<(BodyScan, Guard)>);

/// Masks values in a body that comes.
#[derive(Debug, Default)]
pub(crate) struct Mask {
    kind: Kind,
    /// What was given and not used up yet.
    chunk: Bytes,
    is_more: bool,
    /// Whose values were in the head.
    in_head: Vec<SecretName>,
}

#[derive(Debug, Default)]
enum Kind {
    #[default]
    Off,
    Body(Box<BodyMask>),
    /// As it is, because it is in no coding, or in one that can not be undone.
    Plain(Box<MaskStream>),
}

/// A body that was read ahead of its source.
#[derive(Debug)]
pub(crate) struct Whole<'a, S> {
    pub(crate) first: Option<Bytes>,
    pub(crate) source: &'a mut S,
}

// === impl Secrets ===

impl Secrets {
    pub fn new(vault: Vault) -> Self {
        let secrets = Self { vault: RefCell::new(vault), looking: RefCell::default() };
        secrets.look();
        secrets
    }

    /// Puts a newer value in the place of an older one.
    ///
    /// # Errors
    /// Where there is no secret of that name.
    pub fn renew(&self, secret: Secret) -> Result<(), VaultError> {
        self.vault.borrow_mut().renew(secret)?;
        self.look();
        Ok(())
    }

    /// Takes a newer value from the keeper. One that is no good leaves the old one in its place, until its end.
    pub(crate) fn take_renewed(&self, renewed: Renewed) {
        let Renewed { name, value, expires_unix_millis } = renewed;
        let Ok(name) = SecretName::parse(&name) else { return };
        let value = Zeroizing::new(value.as_bytes().to_vec());
        if let Ok(secret) = Secret::new(name, value, expires_unix_millis) {
            let _ = self.renew(secret);
        }
    }

    /// Takes one more secret from the keeper. It has a placeholder that nobody inside is told. One that is no good is
    /// not there, and what a rule would use it for is refused.
    pub(crate) fn take_given(&self, given: Renewed) {
        let Renewed { name, value, expires_unix_millis } = given;
        let Ok(name) = SecretName::parse(&name) else { return };
        let value = Zeroizing::new(value.as_bytes().to_vec());
        if let Ok(secret) = Secret::new(name, value, expires_unix_millis) {
            let _ = self.vault.borrow_mut().add(secret, Shape::Opaque, &mut fill);
            self.look();
        }
    }

    fn look(&self) {
        let vault = self.vault.borrow();
        let is_empty = vault.placeholders().next().is_none();
        let looking = (!is_empty).then(|| Looking { masker: vault.masker(), guard: vault.guard() });
        *self.looking.borrow_mut() = looking;
    }

    fn looking(&self) -> Option<Looking> {
        self.looking.borrow().clone()
    }

    /// Makes a request that was cleared ready: looked through, and with the secret of its rule in it.
    /// Gives back the body, where it had to be read for that.
    pub(crate) async fn prepare<S: Source>(
        &self,
        cleared: &Cleared,
        ask: &mut Ask,
        source: &mut S,
    ) -> Result<Option<Bytes>, Failure> {
        let Some(looking) = self.looking() else {
            return match cleared.binding() {
                Some(binding) => Err(unusable(&binding.secret, "it was not declared")),
                None => Ok(None),
            };
        };
        let use_ = cleared.binding().map(injection).transpose()?;
        let mut uri = uri(ask)?;
        ask_for_plain(&mut ask.fields);
        // Signatures may cover it; it is written anew when the head is sent.
        if let Length::Known(length) = ask.length {
            ask.fields.insert(CONTENT_LENGTH, length.into());
        }
        let own = use_.as_ref().map(|(injection, name)| (injection, name));
        let method = ask.method.clone();
        let mut head = Head { method: &method, uri: &mut uri, fields: &mut ask.fields };
        looking.guard.head(&head, own).map_err(misplaced)?;
        let mut body = None;
        if let Some((injection, name)) = &use_ {
            let whole = match injection {
                Injection::Body => true,
                Injection::SigV4 { .. } => inject::needs_payload(&head),
                Injection::Bearer
                | Injection::Basic { .. }
                | Injection::Header { .. }
                | Injection::Query { .. } => false,
            };
            if whole && !ask.length.is_empty() {
                body = Some(gather(source, name).await?);
            }
            body = self.put_in(&mut head, (injection, name), body, ask.length)?;
        }
        ask.fields.remove(CONTENT_LENGTH);
        if let Some(body) = &body {
            ask.length = Length::Known(u64::try_from(body.len()).unwrap_or(u64::MAX));
        }
        ask.target = uri.path_and_query().map(|target| target.as_str().to_owned());
        Ok(body)
    }

    fn put_in(
        &self,
        head: &mut Head<'_>,
        (injection, name): (&Injection, &SecretName),
        body: Option<Bytes>,
        length: Length,
    ) -> Result<Option<Bytes>, Failure> {
        let vault = self.vault.borrow();
        let (secret, placeholder) =
            vault.get(name).ok_or_else(|| unusable(name.as_str(), "it was not declared"))?;
        let refused = |error: InjectError| unusable(name.as_str(), &error.to_string());
        if *injection == Injection::Body {
            let Some(body) = body else { return Ok(None) };
            let (body, _) = inject::body(head, &body, secret, placeholder, now()).map_err(refused)?;
            // The owner wipes it once it was sent.
            return Ok(Some(Bytes::from_owner(body)));
        }
        let payload = match &body {
            Some(body) => Payload::Bytes(body),
            None if length.is_empty() => Payload::Empty,
            None => Payload::Unread,
        };
        inject::inject(head, injection, secret, payload, now()).map_err(refused)?;
        Ok(body)
    }

    /// What looks through a body that leaves.
    pub(crate) fn scan(&self) -> Scan {
        Scan(self.looking().map(|looking| (looking.guard.body(), looking.guard)))
    }

    /// What masks a connection that is no longer HTTP.
    pub(crate) fn mask_bytes(&self) -> Mask {
        let kind = match self.looking() {
            Some(looking) => Kind::Plain(Box::new(looking.masker.stream())),
            None => Kind::Off,
        };
        Mask { kind, ..Mask::default() }
    }

    /// Masks the head of an answer, and says how its body is masked. Where the body is decoded for it,
    /// its length is not known any more.
    ///
    /// # Errors
    /// Where a secret was used, and the body is in a coding that hides what is in it.
    pub(crate) fn mask(
        &self,
        binding: Option<&Binding>,
        status: StatusCode,
        fields: &mut HeaderMap,
        length: &mut Length,
    ) -> Result<Mask, Denial> {
        let Some(looking) = self.looking() else { return Ok(Mask::default()) };
        let kind = if *length == Length::None {
            Kind::Off
        } else {
            match (BodyMask::begin(&looking.masker, status, fields), binding) {
                (Ok(body), _) => {
                    if body.is_decoded() {
                        *length = Length::Chunked;
                    }
                    Kind::Body(Box::new(body))
                }
                (Err(why), Some(binding)) => {
                    let why = format!("{why}; {}", why.remedy());
                    return Err(Denial::Secret { secret: binding.secret.clone(), why });
                }
                (Err(_), None) => Kind::Plain(Box::new(looking.masker.stream())),
            }
        };
        let in_head = looking.masker.fields(fields);
        Ok(Mask { kind, in_head, ..Mask::default() })
    }

    /// Masks trailers, and says whose values were in them.
    pub(crate) fn mask_fields(&self, fields: &mut HeaderMap) -> Vec<SecretName> {
        self.looking().map(|looking| looking.masker.fields(fields)).unwrap_or_default()
    }
}

/// Randomness of the kernel's. Without it every placeholder comes out alike, which is refused.
fn fill(bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(8) {
        let word = fumehood_sys::host::random().unwrap_or(0).to_ne_bytes();
        chunk.iter_mut().zip(word).for_each(|(to, from)| *to = from);
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn unusable(secret: &str, why: &str) -> Failure {
    Failure::Denied(Denial::Secret { secret: secret.to_owned(), why: why.to_owned() })
}

fn misplaced(misplaced: Misplaced) -> Failure {
    Failure::Denied(denial(misplaced))
}

fn denial(misplaced: Misplaced) -> Denial {
    let place = format!("the {}", misplaced.place);
    Denial::Placeholder { secret: misplaced.secret.as_str().to_owned(), place }
}

/// How a rule uses its secret, in the words of the vault.
fn injection(binding: &Binding) -> Result<(Injection, SecretName), Failure> {
    let made = match &binding.inject {
        Inject::Bearer => Ok(Injection::Bearer),
        Inject::Basic { user } => Injection::basic(user.as_deref()),
        Inject::Header { name } => Injection::header(name),
        Inject::Query { parameter } => Injection::query(parameter),
        Inject::Sigv4 => Ok(Injection::SigV4 { region: None, service: None }),
        Inject::Body => Ok(Injection::Body),
    };
    let made = made.map_err(|error| unusable(&binding.secret, &error.to_string()))?;
    let name = SecretName::parse(&binding.secret);
    let name = name.map_err(|error| unusable(&binding.secret, &error.to_string()))?;
    Ok((made, name))
}

fn uri(ask: &Ask) -> Result<Uri, Failure> {
    let uri = Uri::builder()
        .scheme(ask.identity.scheme.name())
        .authority(ask.identity.authority())
        .path_and_query(ask.path.sent())
        .build();
    uri.map_err(|_| Failure::Denied(Denial::Malformed("the path has a character that no URL has")))
}

/// Reads a body that is small enough to be looked at as a whole.
async fn gather<S: Source>(source: &mut S, name: &SecretName) -> Result<Bytes, Failure> {
    let mut whole = BytesMut::new();
    loop {
        match source.frame().await.map_err(Failure::Client)? {
            None => return Ok(whole.freeze()),
            Some(Frame::Data(data)) if whole.len() + data.len() <= BODY_LIMIT_BYTES => {
                whole.extend_from_slice(&data);
            }
            Some(Frame::Data(_)) => {
                return Err(unusable(
                    name.as_str(),
                    "the body is larger than 1 MiB, and is needed as a whole",
                ));
            }
            Some(Frame::Trailers(_)) => {
                return Err(unusable(name.as_str(), "the body has trailers, and is needed as a whole"));
            }
        }
    }
}

// === impl Scan ===

impl Scan {
    pub(crate) fn data(&mut self, data: &[u8]) -> Result<(), Denial> {
        self.0.as_mut().map_or(Ok(()), |(scan, _)| scan.feed(data).map_err(denial))
    }

    pub(crate) fn trailers(&self, fields: &HeaderMap) -> Result<(), Denial> {
        self.0.as_ref().map_or(Ok(()), |(_, guard)| guard.trailers(fields).map_err(denial))
    }
}

// === impl Mask ===

impl Mask {
    pub(crate) fn give(&mut self, data: Bytes) {
        self.chunk = data;
        self.is_more = true;
    }

    /// The next of what can be passed on of what was given; `None` once more is needed.
    pub(crate) fn take(&mut self) -> Result<Option<Bytes>, Stop> {
        while self.is_more {
            let chunk = std::mem::take(&mut self.chunk);
            let mut out = Gathered::default();
            self.is_more = false;
            match &mut self.kind {
                Kind::Off => return Ok(Some(chunk)),
                Kind::Plain(stream) => stream.feed(&chunk, &mut |piece| out.add(&chunk, piece)),
                Kind::Body(body) => {
                    let step = body.feed(&chunk, &mut |piece| out.add(&chunk, piece)).map_err(damaged)?;
                    self.is_more = step.more;
                    self.chunk = chunk.slice(step.used.min(chunk.len())..);
                }
            }
            let out = out.of(&chunk);
            if !out.is_empty() {
                return Ok(Some(out));
            }
        }
        Ok(None)
    }

    /// What need not be held back while nothing comes.
    pub(crate) fn pause(&mut self) -> Bytes {
        let mut out = Gathered::default();
        let none = Bytes::new();
        match &mut self.kind {
            Kind::Off => {}
            Kind::Plain(stream) => stream.release(&mut |piece| out.add(&none, piece)),
            Kind::Body(body) => body.release(&mut |piece| out.add(&none, piece)),
        }
        out.of(&none)
    }

    /// Whose values were found so far, in the head and in the body.
    pub(crate) fn found(&self) -> Vec<SecretName> {
        let mut names = self.in_head.clone();
        match &self.kind {
            Kind::Off => {}
            Kind::Plain(stream) => names.extend(stream.found().map(|(name, _)| name.clone())),
            Kind::Body(body) => names.extend(body.found().map(|(name, _)| name.clone())),
        }
        names
    }

    /// What was held back, at the end.
    pub(crate) fn rest(&mut self) -> Result<Bytes, Stop> {
        let mut out = Gathered::default();
        let none = Bytes::new();
        match &mut self.kind {
            Kind::Off => {}
            Kind::Plain(stream) => stream.finish(&mut |piece| out.add(&none, piece)),
            Kind::Body(body) => body.finish(&mut |piece| out.add(&none, piece)).map_err(damaged)?,
        }
        Ok(out.of(&none))
    }
}

fn damaged(error: DecodeError) -> Stop {
    Stop::Source(Broken::Malformed(match error {
        DecodeError::Damaged(_) => "the body is not in the coding that its head says",
        DecodeError::Truncated => "the body ends in the middle",
        DecodeError::Bomb => "the body grows without bound when it is decoded",
    }))
}

/// Output that stays a part of its chunk while it is one.
#[derive(Default)]
struct Gathered {
    same: Option<Range<usize>>,
    other: Vec<u8>,
}

impl Gathered {
    fn add(&mut self, chunk: &[u8], piece: Piece<'_>) {
        match piece {
            Piece::Chunk(range) if self.same.is_none() && self.other.is_empty() => self.same = Some(range),
            Piece::Chunk(range) => {
                self.spill(chunk);
                self.other.extend_from_slice(chunk.get(range).unwrap_or_default());
            }
            Piece::Bytes(bytes) => {
                self.spill(chunk);
                self.other.extend_from_slice(bytes);
            }
        }
    }

    fn spill(&mut self, chunk: &[u8]) {
        if let Some(range) = self.same.take() {
            self.other.extend_from_slice(chunk.get(range).unwrap_or_default());
        }
    }

    fn of(self, chunk: &Bytes) -> Bytes {
        match self.same {
            Some(range) if range.end <= chunk.len() => chunk.slice(range),
            Some(_) | None => Bytes::from(self.other),
        }
    }
}

// === impl Whole ===

impl<S: Source> Source for Whole<'_, S> {
    async fn frame(&mut self) -> Result<Option<Frame>, Broken> {
        match self.first.take() {
            Some(first) if !first.is_empty() => Ok(Some(Frame::Data(first))),
            Some(_) | None => self.source.frame().await,
        }
    }

    async fn gone(&mut self) {
        self.source.gone().await;
    }
}
