//! The one client for HTTP of this program, for who has something to send: as strict as for registries, and no redirects.

use super::registry::{agent, parse};
use crate::fault::{Code, Fault};
use fumehood_model::text::shown;
use std::fmt;
use ureq::Agent;

/// A place that bytes are posted to.
pub struct Poster {
    agent: Agent,
    url: String,
    fields: Vec<(String, String)>,
}

// === impl Poster ===

impl Poster {
    /// Posts to this URL, with these fields of the head. In the clear only where the URL says so.
    pub fn new(url: &str, fields: Vec<(String, String)>) -> Result<Self, Fault> {
        let uri = parse(url)?;
        let local = match uri.scheme_str() {
            Some("http") => true,
            Some("https") => false,
            Some(_) | None => {
                return Err(Fault::new(Code::BadAnswer, format!("`{}` is no place of the web", shown(url))));
            }
        };
        Ok(Self { agent: agent(local)?, url: url.to_owned(), fields })
    }

    /// Posts once. Anything but a status of success is a fault.
    pub fn post(&self, media_type: &str, more: &[(&str, &str)], body: &[u8]) -> Result<(), Fault> {
        let mut request = self.agent.post(&self.url).header("content-type", media_type);
        for (name, value) in &self.fields {
            request = request.header(name, value);
        }
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        let sent = request.send(body);
        let answer = sent.map_err(|error| Fault::new(Code::Unreachable, shown(&error.to_string())))?;
        if answer.status().is_success() {
            return Ok(());
        }
        Err(Fault::new(Code::BadAnswer, format!("it answered with {}", answer.status())))
    }
}

impl fmt::Debug for Poster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poster").field("url", &self.url).finish_non_exhaustive()
    }
}
