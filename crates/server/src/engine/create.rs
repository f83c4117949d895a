//! How a sandbox comes to be somebody's: from nothing, or from a pool.

use super::Engine;
use crate::caller::{Caller, Scope};
use crate::clock;
use crate::error::{ApiError, Code};
use crate::keeper::Keeper;
use crate::keys::hex;
use crate::live::Live;
use crate::quota::{Has, Place, of_key};
use crate::registry::{Repeat, Row};
use crate::sandbox::{BASE_TEMPLATE, NewSandbox, OnTimeout, Published, Sandbox, State};
use crate::spawn::{self, Birth};
use crate::template;
use fumehood_keep::fault::{self, Point};
use fumehood_keep::wire::{Ask, Claim, Spec};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Labels of ours begin with this; callers' do not.
pub(super) const OWN_LABELS: &str = "fumehood.";
/// The label that ties a sandbox to the request that made it, should the daemon die between the two.
pub(super) const REPEAT_LABEL: &str = "fumehood.repeat";
/// The label that says whose it is.
pub(super) const TEAM_LABEL: &str = "fumehood.team";
/// The label that says which start of the daemon makes it: one of this start is not a stranger.
pub(super) const DAEMON_LABEL: &str = "fumehood.daemon";
const MOST_LABELS: usize = 64;
const MOST_TEXT_BYTES: usize = 4096;
const MOST_REPEAT_KEY_BYTES: usize = 256;
/// It is an argument of a command inside.
const MOST_PREPARATION_BYTES: usize = 100_000;
/// Attempts at claiming before one is made: those that waited may have died.
const CLAIMS: usize = 3;

/// Requests with an idempotency key that are under way, each with a lock that the same request waits in.
pub(super) type Repeats = Mutex<HashMap<(String, String), Arc<tokio::sync::Mutex<()>>>>;

/// What a sandbox is going to be.
struct Plan<'a> {
    caller: &'a Caller,
    new: &'a NewSandbox,
    spec: Spec,
    expires_ms: Option<u64>,
    origin: Origin,
    /// The daemon that makes it.
    instance: &'a str,
}

/// What a sandbox comes from.
#[derive(Debug, Default)]
pub(super) struct Origin {
    /// The sandbox that it is forked from.
    pub(super) parent: Option<String>,
    pub(super) root: Option<String>,
    /// The request that may come again.
    pub(super) repeat: Option<Repeat>,
}

// === impl Engine ===

impl Engine {
    /// Makes a sandbox, or takes one that waits.
    ///
    /// # Errors
    /// A quota, a flaw in what was asked, or no sandbox came to be.
    pub async fn create(&self, caller: &Caller, new: NewSandbox) -> Result<Sandbox, ApiError> {
        let (engine, caller) = (self.clone(), caller.clone());
        let from_ms = clock::now_ms();
        let claimed = self.counters().claimed.load(Ordering::Relaxed);
        let template = new.template.clone().unwrap_or_else(|| BASE_TEMPLATE.to_owned());
        let team = caller.team.clone();
        // A caller who goes away meanwhile does not leave half a sandbox.
        let made = tokio::spawn(async move { engine.create_once(&caller, new).await }).await;
        let made = made
            .map_err(|error| ApiError::plain(Code::Internal, "create the sandbox", error.to_string()))
            .flatten();
        let counters = self.counters();
        let counter = if made.is_ok() { &counters.created } else { &counters.create_failures };
        counter.fetch_add(1, Ordering::Relaxed);
        if self.tracer().is_on() {
            // With others at the same moment the name may be theirs; the times are its own.
            let is_claim = self.counters().claimed.load(Ordering::Relaxed) > claimed;
            let name = if is_claim { "claim" } else { "create" };
            let task = made.as_ref().map_or("none", |sandbox| sandbox.id.as_str());
            let said = vec![("template", template.into()), ("team", team.into())];
            self.tracer().done((name, task), from_ms, &made, said);
        }
        made
    }

    async fn create_once(&self, caller: &Caller, new: NewSandbox) -> Result<Sandbox, ApiError> {
        judge(&new)?;
        let Some(key) = new.idempotency_key.clone() else { return self.make(caller, &new, None).await };
        let repeat = Repeat { team: caller.team.clone(), key, fingerprint: fingerprint(&new) };
        let slot = (repeat.team.clone(), repeat.key.clone());
        let lock = {
            let mut repeats = self.0.repeats.lock().unwrap_or_else(PoisonError::into_inner);
            repeats.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(repeats.entry(slot).or_default())
        };
        let _alone = lock.lock().await;
        match self.0.registry.repeated(repeat.team.clone(), repeat.key.clone()).await? {
            None => self.make(caller, &new, Some(repeat)).await,
            Some((fingerprint, _)) if fingerprint != repeat.fingerprint => Err(ApiError::plain(
                Code::KeyReused,
                "create the sandbox",
                "the idempotency key came with another request before",
            )),
            Some((_, Some(sandbox))) => {
                Ok(self.any(sandbox.id.as_str()).map_or(sandbox, |live| live.sandbox()))
            }
            Some((_, None)) => Err(ApiError::plain(
                Code::Ending,
                "create the sandbox again",
                "the one that this idempotency key made has ended",
            )),
        }
    }

    async fn make(
        &self,
        caller: &Caller,
        new: &NewSandbox,
        repeat: Option<Repeat>,
    ) -> Result<Sandbox, ApiError> {
        let is_admin = caller.scopes.has(Scope::Admin);
        template::judge(&new.envelope, is_admin)?;
        let mut spec = self.template(caller, new.template.as_deref().unwrap_or(BASE_TEMPLATE)).await?;
        if let Some(clause) = new.envelope.get("network").filter(|_| !is_admin) {
            let is_own = |name: &str| new.literals.get(name).is_some();
            crate::network::judge(
                (super::network::clause_of(&spec), clause),
                &is_own,
                &crate::network::own_addresses()?,
            )?;
        }
        template::lay(&mut spec.envelope, new.envelope.clone());
        if new.envelope.pointer("/network/allow").is_some() {
            template::drop_unused(&mut spec);
        }
        template::give(&mut spec, &new.literals);
        if let Some(level) = &new.level {
            if !is_admin {
                template::judge_level(&spec, level)?;
            }
            spec.level = Some(level.clone());
        }
        if new.warm.is_some() {
            spec.warm.clone_from(&new.warm);
        }
        spec.env.extend(new.env.iter().cloned());
        self.born(caller, new, spec, Origin { repeat, ..Origin::default() }).await
    }

    pub(super) async fn template(&self, caller: &Caller, name: &str) -> Result<Spec, ApiError> {
        if let Some(spec) = self.0.templates.spec(name) {
            return self.prepared(name, spec).await;
        }
        if let Some(kept) = self.0.registry.find_snapshot(caller.team.clone(), name.to_owned()).await? {
            return Ok(Spec { snapshot: Some(kept.folder), ..kept.spec });
        }
        let shown: String = name.chars().take(64).collect();
        Err(ApiError::new(
            Code::NotFound,
            "find the template",
            format!("template `{shown}` was not found"),
            format!("use one of: {}; or the name of a snapshot", self.0.templates.names().join(", ")),
        ))
    }

    /// The caller's sandbox, of this spec.
    pub(super) async fn born(
        &self,
        caller: &Caller,
        new: &NewSandbox,
        spec: Spec,
        origin: Origin,
    ) -> Result<Sandbox, ApiError> {
        self.0.halts.check(&caller.team)?;
        let who = self.has(caller);
        let mut place = self.0.quotas.reserve(&who)?;
        let ttl = new.ttl.unwrap_or(self.0.config.ttl);
        self.0.quotas.ttl(&who, ttl)?;
        let expires_ms = self.end_of(Some(ttl))?;
        let mut plan = Plan { caller, new, spec, expires_ms, origin, instance: &self.0.instance };
        let sandbox = match self.claim(&mut plan, &mut place).await? {
            Some(sandbox) => sandbox,
            None => self.make_now(plan, &mut place).await?,
        };
        // The kill switch may have been thrown while it was made.
        if self.0.halts.check(&sandbox.team).is_err()
            && let Some(live) = self.any(sandbox.id.as_str())
        {
            let _ = self.ask(&live, &Ask::Halt).await;
            return Ok(live.change(|sandbox| sandbox.state = State::Halted));
        }
        Ok(sandbox)
    }

    /// Takes one that waits, if one does.
    async fn claim(&self, plan: &mut Plan<'_>, place: &mut Place) -> Result<Option<Sandbox>, ApiError> {
        // Nobody waits for another child of the same moment.
        let is_child = plan.origin.parent.is_some();
        let is_apart = is_child || !plan.spec.literals.is_empty();
        let Some(key) = self.0.pools.key(&plan.spec).filter(|_| !is_apart) else { return Ok(None) };
        for _ in 0..CLAIMS {
            let Some(birth) = self.0.pools.take(&key, &plan.spec) else { break };
            let claim = Claim {
                actor: plan.caller.actor(),
                env: plan.spec.env.clone(),
                labels: plan.labels(),
                expires_ms: plan.keeper_end(),
            };
            plan.spec.labels = claim.labels.clone();
            let (live, child) = plan.live(birth);
            if let Err(error) = self.fits(&live, plan.caller, place) {
                self.discard(live.keeper().clone(), child);
                return Err(error);
            }
            let row = Row { sandbox: live.sandbox(), spec: live.spec() };
            // On the books first: should the daemon die now, the next one finds whose it became.
            if let Err(error) = self.0.registry.register(row, plan.origin.repeat.clone()).await {
                self.discard(live.keeper().clone(), child);
                return Err(error);
            }
            fault::point(Point::ClaimRegistered);
            if live.keeper().call(&Ask::Claim(claim)).await.is_ok() {
                fault::point(Point::ClaimDone);
                self.0.counters.claimed.fetch_add(1, Ordering::Relaxed);
                let sandbox = live.sandbox();
                self.hold(&live);
                self.watch(live, child);
                self.refill(key);
                return Ok(Some(sandbox));
            }
            self.discard(live.keeper().clone(), child);
            self.0.registry.strike(live.id().to_string()).await?;
        }
        self.refill(key);
        Ok(None)
    }

    async fn make_now(&self, mut plan: Plan<'_>, place: &mut Place) -> Result<Sandbox, ApiError> {
        plan.spec.labels = plan.labels();
        plan.spec.actor = plan.caller.actor();
        plan.spec.expires_ms = plan.keeper_end();
        plan.spec.pooled = false;
        fault::point(Point::CreateAsked);
        // What a caller lets run before the birth takes nobody else's turn.
        let turns = if plan.spec.warm.is_some() { &self.0.preparations } else { &self.0.spawns };
        let permit = turns.acquire().await;
        let began = Instant::now();
        let birth = spawn::spawn(&self.0.config, &plan.spec).await;
        drop(permit);
        // The keeper has them; nobody else needs them any more.
        let had = std::mem::take(&mut plan.spec.literals);
        let birth = birth?;
        fault::point(Point::CreateBorn);
        if had.is_empty()
            && let Some(key) = self.0.pools.key(&plan.spec)
        {
            self.0.pools.measured(&key, began.elapsed());
        }
        let (live, child) = plan.live(birth);
        if let Err(error) = self.fits(&live, plan.caller, place) {
            self.discard(live.keeper().clone(), child);
            return Err(error);
        }
        let row = Row { sandbox: live.sandbox(), spec: live.spec() };
        if let Err(error) = self.0.registry.register(row, plan.origin.repeat).await {
            self.discard(live.keeper().clone(), child);
            return Err(error);
        }
        fault::point(Point::CreateRegistered);
        let sandbox = live.sandbox();
        self.hold(&live);
        self.watch(live, child);
        Ok(sandbox)
    }

    /// Makes more for a line, in the background, one after the other.
    pub(super) fn refill(&self, key: String) {
        let engine = self.clone();
        tokio::spawn(async move {
            // While all is halted nothing new comes to be; the next claim fills the line again.
            while !engine.0.halts.is_team_halted("")
                && let Some(mut spec) = engine.0.pools.wanted(&key)
            {
                spec.labels.insert(DAEMON_LABEL.to_owned(), engine.0.instance.clone());
                let permit = engine.0.spawns.acquire().await;
                let began = Instant::now();
                let birth = spawn::spawn(&engine.0.config, &spec).await;
                drop(permit);
                match birth {
                    Ok(birth) => {
                        fault::point(Point::PoolBorn);
                        engine.0.pools.add(&key, birth, began.elapsed());
                    }
                    Err(error) => {
                        engine.0.pools.give_up(&key);
                        crate::log::warn("pool", &error.to_string());
                        return;
                    }
                }
            }
        });
    }

    /// Ends one that is nobody's, in the background.
    pub(super) fn discard(&self, keeper: Keeper, mut child: tokio::process::Child) {
        tokio::spawn(async move {
            let _ = keeper.call(&Ask::Stop { keep_files: false }).await;
            let _ = child.wait().await;
        });
    }

    /// Whether there is room for a sandbox of that size.
    fn fits(&self, live: &Live, caller: &Caller, place: &mut Place) -> Result<(), ApiError> {
        place.fit(size(&live.sandbox()), &self.has(caller))
    }

    /// What the caller's team and the caller's key have.
    pub(super) fn has(&self, caller: &Caller) -> Vec<(String, Has)> {
        let mut who = vec![(caller.team.clone(), Has::default()), (of_key(&caller.name), Has::default())];
        for sandbox in self.all().iter().map(Live::sandbox).filter(|one| one.team == caller.team) {
            let is_of_key = sandbox.key.as_ref() == Some(&caller.name);
            for (_, has) in who.iter_mut().take(if is_of_key { 2 } else { 1 }) {
                *has = has.plus(size(&sandbox));
            }
        }
        who
    }
}

fn size(sandbox: &Sandbox) -> Has {
    Has {
        sandboxes: 1,
        memory_bytes: sandbox.memory_limit_bytes,
        disk_bytes: sandbox.disk_limit_bytes,
        cpu_milli: sandbox.cpu_milli.unwrap_or(0),
    }
}

// === impl Plan ===

impl Plan<'_> {
    /// The caller's labels and ours.
    fn labels(&self) -> std::collections::BTreeMap<String, String> {
        let mut labels = self.new.labels.clone();
        labels.insert(TEAM_LABEL.to_owned(), self.caller.team.clone());
        labels.insert(DAEMON_LABEL.to_owned(), self.instance.to_owned());
        if let Some(repeat) = &self.origin.repeat {
            labels.insert(REPEAT_LABEL.to_owned(), format!("{} {}", repeat.fingerprint, repeat.key));
        }
        labels
    }

    /// When the keeper ends it by itself; never where its time leads to a pause.
    fn keeper_end(&self) -> Option<u64> {
        self.expires_ms.filter(|_| self.new.on_timeout == OnTimeout::Stop)
    }

    fn live(&self, birth: Birth) -> (Live, tokio::process::Child) {
        let Birth { id, socket, status, child } = birth;
        let sandbox = Sandbox {
            id,
            team: self.caller.team.clone(),
            template: self.new.template.clone().unwrap_or_else(|| BASE_TEMPLATE.to_owned()),
            level: status.level,
            state: State::Running,
            labels: self.new.labels.clone(),
            created_ms: clock::now_ms(),
            expires_ms: self.expires_ms,
            on_timeout: self.new.on_timeout,
            auto_resume: self.new.auto_resume,
            idle_pause_ms: self.new.idle_pause.map(clock::millis),
            memory_limit_bytes: status.memory_limit_bytes,
            disk_limit_bytes: status.disk_limit_bytes,
            cpu_milli: status.cpu_limit_milli,
            parent: self.origin.parent.clone(),
            root: self.origin.root.clone(),
            key: Some(self.caller.name.clone()),
            home: status.home,
            cwd: status.cwd,
            published: status.published.into_iter().map(Published::from).collect(),
            ended: None,
        };
        (Live::new(sandbox, Keeper::at(socket), self.spec.clone()), child)
    }
}

fn judge(new: &NewSandbox) -> Result<(), ApiError> {
    let bad = |cause: &str| Err(ApiError::plain(Code::BadRequest, "create the sandbox", cause));
    let long = |text: &String| text.len() > MOST_TEXT_BYTES || text.contains('\0');
    if new.labels.len() > MOST_LABELS || new.labels.iter().any(|(name, value)| long(name) || long(value)) {
        return bad("there are more than 64 labels, or one has more than 4,096 bytes or a NUL");
    }
    if new.labels.keys().any(|name| name.starts_with(OWN_LABELS)) {
        return bad("labels that begin with `fumehood.` are the daemon's own");
    }
    let odd = |name: &String| name.is_empty() || name.contains(['=', '\0']);
    if new.env.iter().any(|(name, value)| odd(name) || value.contains('\0')) {
        return bad("a variable's name is empty or has `=`, or there is a NUL");
    }
    if new
        .warm
        .as_ref()
        .is_some_and(|warm| warm.prepare.len() > MOST_PREPARATION_BYTES || warm.prepare.contains('\0'))
    {
        return bad("the preparation has more than 100,000 bytes, or a NUL");
    }
    if new.idempotency_key.as_ref().is_some_and(|key| key.is_empty() || key.len() > MOST_REPEAT_KEY_BYTES) {
        return bad("an idempotency key has 1 to 256 bytes");
    }
    Ok(())
}

/// What two requests with one idempotency key must have in common: everything.
fn fingerprint(new: &NewSandbox) -> String {
    hex(&Sha256::digest(format!("{:?}", NewSandbox { idempotency_key: None, ..new.clone() })))
}
