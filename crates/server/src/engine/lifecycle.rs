//! From running to paused and back, and to the end.

use super::{Engine, Pausing, not_usable, whole};
use crate::clock;
use crate::error::{ApiError, Code};
use crate::live::Live;
use crate::sandbox::{OnTimeout, Sandbox, State};
use fumehood_keep::client::CallError;
use fumehood_keep::fault::{self, Point};
use fumehood_keep::wire::Ask;
use std::time::Duration;

// === impl Engine ===

impl Engine {
    /// Ends a sandbox and removes everything of it.
    ///
    /// # Errors
    /// Its keeper lives and could not do it.
    pub async fn stop(&self, live: &Live) -> Result<(), ApiError> {
        let (engine, live) = (self.clone(), live.clone());
        whole("end the sandbox", async move {
            let _transition = live.transition().await;
            engine.end(&live, "stopped").await
        })
        .await
    }

    /// Freezes a sandbox.
    ///
    /// # Errors
    /// [`Code::Paused`] if it is; its keeper could not do it.
    pub async fn pause(&self, live: &Live, why: Pausing) -> Result<Sandbox, ApiError> {
        let (engine, live) = (self.clone(), live.clone());
        whole("pause the sandbox", async move {
            let from_ms = clock::now_ms();
            let paused = engine.pause_now(&live, why).await;
            engine.tracer().done(("pause", live.id().as_str()), from_ms, &paused, Vec::new());
            paused
        })
        .await
    }

    async fn pause_now(&self, live: &Live, why: Pausing) -> Result<Sandbox, ApiError> {
        let _transition = live.transition().await;
        let now_ms = clock::now_ms();
        let stale = match why {
            Pausing::Asked => false,
            Pausing::Idle => !live.is_idle(now_ms),
            Pausing::Expired => !live.is_expired(now_ms),
        };
        if stale {
            return Ok(live.sandbox());
        }
        match live.state() {
            State::Running => {}
            state @ (State::Paused | State::Halted | State::Ended) => return Err(not_usable(live, state)),
        }
        // From here on nobody enters: whoever comes waits for the transition, and wakes it again.
        live.change(|sandbox| sandbox.state = State::Paused);
        fault::point(Point::PauseMarked);
        let kept = self.ask(live, &Ask::Expire { at_ms: None }).await;
        fault::point(Point::PauseTimeless);
        let paused = match kept {
            Ok(_) => self.ask(live, &Ask::Pause).await,
            Err(error) => Err(error),
        };
        // One that its keeper had paused already, for being idle, stays paused now because somebody said so.
        let paused =
            paused.map(|_| ()).or_else(|error| if error.code == Code::Paused { Ok(()) } else { Err(error) });
        match paused {
            Ok(()) => {
                fault::point(Point::PauseDone);
                let sandbox = live.change(|sandbox| sandbox.expires_ms = None);
                self.keep(live).await;
                lives(live, sandbox)
            }
            Err(error) => {
                live.change(|sandbox| {
                    if sandbox.state == State::Paused {
                        sandbox.state = State::Running;
                    }
                });
                Err(error)
            }
        }
    }

    /// Thaws a sandbox, for `ttl` from now on (the configured span if absent).
    ///
    /// # Errors
    /// [`Code::NotPaused`] if it runs; its keeper could not do it.
    pub async fn resume(&self, live: &Live, ttl: Option<Duration>) -> Result<Sandbox, ApiError> {
        if self.wake(live, ttl).await? {
            return Ok(live.sandbox());
        }
        Err(ApiError::plain(Code::NotPaused, "resume the sandbox", "it runs"))
    }

    /// Makes sure that a sandbox runs, for at least `ttl` from now on. Only ever extends its time. The flag tells
    /// whether it was woken.
    ///
    /// # Errors
    /// It is halted or has ended.
    pub async fn connect(&self, live: &Live, ttl: Option<Duration>) -> Result<(Sandbox, bool), ApiError> {
        if self.wake(live, ttl).await? {
            return Ok((live.sandbox(), true));
        }
        if let Some(ttl) = ttl {
            let (engine, live) = (self.clone(), live.clone());
            whole("extend the sandbox's time", async move {
                let _transition = live.transition().await;
                let wanted = engine.end_for(&live, ttl)?;
                let has = live.sandbox().expires_ms;
                if has.is_some_and(|has| wanted.is_none_or(|wanted| wanted > has)) {
                    engine.set_end(&live, wanted).await?;
                }
                Ok(())
            })
            .await?;
        }
        Ok((live.sandbox(), false))
    }

    /// Sets when a sandbox's time is over: `ttl` from now on.
    ///
    /// # Errors
    /// It is longer than is allowed; the sandbox has ended.
    pub async fn set_ttl(&self, live: &Live, ttl: Duration) -> Result<Sandbox, ApiError> {
        let (engine, live) = (self.clone(), live.clone());
        whole("set the sandbox's time", async move {
            let _transition = live.transition().await;
            let end = engine.end_for(&live, ttl)?;
            engine.set_end(&live, end).await
        })
        .await
    }

    /// The caller holds the transition.
    pub(super) async fn end(&self, live: &Live, cause: &'static str) -> Result<(), ApiError> {
        if live.state() == State::Ended {
            return Err(ApiError::no_sandbox(live.id().as_str()));
        }
        // Whoever watches its keeper may be the first to see that it is gone.
        live.mean_end(Some(cause));
        fault::point(Point::StopAsked);
        match live.keeper().call(&Ask::Stop { keep_files: false }).await {
            Ok(_) => {}
            // One that is gone already is what was wanted.
            Err(CallError::Unreachable(_) | CallError::Closed) if self.is_gone(live).await => {}
            Err(error) => {
                live.mean_end(None);
                return Err(error.into());
            }
        }
        fault::point(Point::StopDone);
        self.forget(live, cause).await;
        Ok(())
    }

    /// Wakes a sandbox that is paused. The flag tells whether it was.
    pub(super) async fn wake(&self, live: &Live, ttl: Option<Duration>) -> Result<bool, ApiError> {
        let (engine, live) = (self.clone(), live.clone());
        whole("wake the sandbox", async move {
            let from_ms = clock::now_ms();
            let woken = engine.wake_now(&live, ttl).await;
            if !matches!(woken, Ok(false)) {
                engine.tracer().done(("resume", live.id().as_str()), from_ms, &woken, Vec::new());
            }
            woken
        })
        .await
    }

    async fn wake_now(&self, live: &Live, ttl: Option<Duration>) -> Result<bool, ApiError> {
        let _transition = live.transition().await;
        match live.state() {
            State::Running => return Ok(false),
            State::Paused => {}
            state @ (State::Halted | State::Ended) => return Err(not_usable(live, state)),
        }
        let end = match ttl {
            Some(ttl) => self.end_for(live, ttl)?,
            None => self.end_of(Some(self.0.config.ttl))?,
        };
        match self.ask(live, &Ask::Resume).await {
            Ok(_) => {}
            Err(error) if error.code == Code::NotPaused => {}
            Err(error) => return Err(error),
        }
        fault::point(Point::WakeDone);
        self.set_end(live, end).await?;
        fault::point(Point::WakeTimed);
        let sandbox = live.change(|sandbox| sandbox.state = State::Running);
        self.keep(live).await;
        lives(live, sandbox).map(|_| true)
    }

    /// The caller holds the transition.
    async fn set_end(&self, live: &Live, end: Option<u64>) -> Result<Sandbox, ApiError> {
        let on_timeout = live.sandbox().on_timeout;
        self.ask(live, &Ask::Expire { at_ms: end.filter(|_| on_timeout == OnTimeout::Stop) }).await?;
        fault::point(Point::TtlDone);
        let sandbox = live.change(|sandbox| sandbox.expires_ms = end);
        self.keep(live).await;
        lives(live, sandbox)
    }

    /// As [`Engine::end_of`], within the ceilings of its team and of the key that made it.
    fn end_for(&self, live: &Live, ttl: Duration) -> Result<Option<u64>, ApiError> {
        let sandbox = live.sandbox();
        self.0.quotas.span(&sandbox.team, sandbox.key.as_deref(), ttl)?;
        self.end_of(Some(ttl))
    }

    pub(super) fn end_of(&self, ttl: Option<Duration>) -> Result<Option<u64>, ApiError> {
        let Some(ttl) = ttl else { return Ok(None) };
        if let Some(most) = self.0.config.most_ttl.filter(|most| ttl > *most) {
            let cause = format!("{} s were asked for, and {} s are allowed", ttl.as_secs(), most.as_secs());
            return Err(ApiError::new(
                Code::BadRequest,
                "set the sandbox's time",
                cause,
                "ask for a shorter time, and extend it while the sandbox is used",
            ));
        }
        Ok(Some(clock::now_ms().saturating_add(clock::millis(ttl))))
    }
}

/// What was changed, unless it has ended at that moment.
fn lives(live: &Live, sandbox: Sandbox) -> Result<Sandbox, ApiError> {
    if sandbox.state == State::Ended { Err(not_usable(live, State::Ended)) } else { Ok(sandbox) }
}
