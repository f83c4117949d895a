//! Where a sandbox may send: rules, the one identity they judge, and the one decision.
//!
//! ```text
//!  text ──► Rule ──────────────┐
//!                              ├─ Egress ─► Table ─► decide(identity, request) ─► Permit │ Denial
//!  bytes ─► Name, Host ─► Identity                   reach(permit, addresses)  ─► addresses │ Denial
//! ```
//!
//! **Invariant:** matcher, resolver, dialler, certificate check, injector and record take an
//! [`Identity`], and nothing else says where a request goes.
//!
//! **Invariant:** nothing but [`Table::decide`] makes a [`Permit`], and a permit is spent by value.
//!
//! **Invariant:** an address that is not public is reached only where a rule names that very
//! address, or a range or name was opened to it on purpose.

pub mod address;
mod binding;
mod change;
mod clause;
mod decide;
pub mod host;
mod identity;
mod index;
mod method;
pub mod path;
mod public;
mod range;
mod rule;
mod spelling;
mod table;

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;

pub(crate) use binding::is_secret_name;
pub use binding::{Binding, Inject};
pub use change::Rules;
pub use clause::{Authority, Ceiling, Counted, Egress, Opened, Publish, Reach, Resolution, Upstream};
pub use decide::{Ask, Denial, Opening, Permit, Request};
pub use host::{Host, Name, NameFlaw, Pattern};
pub use identity::{Identity, IdentityFlaw, Scheme};
pub use method::Method;
pub use path::{PathFlaw, PathPattern, UrlPath};
pub use range::Range;
pub use rule::{Matter, Ports, Rule, RuleFlaw};
pub use table::{RuleId, Table};

/// The name under which a rule can open a port of the host's own loopback. It has no other address.
pub const HOST_NAME: &str = "host.fumehood.internal";
