//! Labels that people choose: of sinks, replicas and consumers. Checked once, here.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A label that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} name {text:?} {why}; use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a letter or digit")]
pub struct NameError {
    /// What was to be named.
    pub kind: &'static str,
    /// The text that was given, cut to 160 characters.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

fn check(kind: &'static str, text: &str) -> Result<(), NameError> {
    let refuse = |why: String| Err(NameError { kind, text: text.chars().take(160).collect(), why });
    let Some(first) = text.chars().next() else { return refuse("is empty".into()) };
    if text.len() > 128 {
        return refuse(format!("has {} bytes", text.len()));
    }
    if let Some(bad) = text.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-".contains(*c))) {
        return refuse(format!("holds {bad:?}"));
    }
    if !first.is_ascii_alphanumeric() {
        return refuse(format!("begins with {first:?}"));
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The label as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                check($kind, text).map(|()| Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                check($kind, &text).map(|()| Self(text))
            }
        }

        impl TryFrom<&str> for $name {
            type Error = NameError;
            fn try_from(text: &str) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

name!(
    /// The label of a sink; unique among the sinks that are not dropped.
    SinkName, "sink"
);
name!(
    /// The label of a replica: one independent copy of the dataflow.
    ReplicaName, "replica"
);
name!(
    /// The label of a consumer of a sink.
    ConsumerName, "consumer"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_slashes_dots_first_or_no_letters_are_refused() {
        assert!("orders-2".parse::<SinkName>().is_ok());
        for bad in ["", "a/b", "..", ".a", "a b", "ä", &"x".repeat(129)] {
            let error = bad.parse::<SinkName>().expect_err(bad);
            assert!(error.to_string().starts_with("sink name"), "{error}");
        }
    }
}
