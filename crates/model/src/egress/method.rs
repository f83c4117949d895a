//! Request methods. They are case-sensitive, and a rule names them one by one.

use serde::{Serialize, Serializer};
use std::borrow::Borrow;
use std::fmt;

/// A method, as a token: never `CONNECT`, which asks for a tunnel and not for a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Method(Box<str>);

// === impl Method ===

impl Method {
    /// `None` where the text is no token, or longer than 32 bytes, or `CONNECT`.
    pub fn parse(text: &str) -> Option<Self> {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let good = (1..=32).contains(&text.len()) && text.bytes().all(token) && text != "CONNECT";
        good.then(|| Self(text.into()))
    }

    /// The method, as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Equal methods are equal text, and hash alike.
impl Borrow<str> for Method {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Method {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}
