//! A test that runs as root and as an ordinary user.

/// Each of these runs as both callers.
macro_rules! both_callers {
    ($($name:ident)*) => {$(
        mod $name {
            #[test]
            fn by_root() {
                if crate::lab::Caller::Root.available() {
                    super::$name(&crate::lab::Lab::new(crate::lab::Caller::Root));
                }
            }

            #[test]
            fn by_a_user() {
                super::$name(&crate::lab::Lab::new(crate::lab::Caller::User));
            }
        }
    )*};
}

pub(crate) use both_callers;
