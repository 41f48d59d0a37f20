//! What a bucket's policy says about plain connections: a pure function over its JSON.

use serde_json::Value;

/// Whether the policy denies everybody what does not come over TLS. `None`: it is not JSON.
pub(super) fn denies_plain(policy: &str) -> Option<bool> {
    let policy: Value = serde_json::from_str(policy).ok()?;
    let statements = many(policy.get("Statement")?);
    Some(statements.into_iter().any(denies_all_plain))
}

/// A list, or the one thing that may stand in its place.
fn many(value: &Value) -> Vec<&Value> {
    value.as_array().map_or_else(|| vec![value], |all| all.iter().collect())
}

fn denies_all_plain(statement: &Value) -> bool {
    let has = |name: &str, wanted: &[&str]| {
        let values = statement.get(name).map(many).unwrap_or_default();
        values.into_iter().filter_map(Value::as_str).any(|value| wanted.contains(&value))
    };
    let principal = statement.get("Principal");
    let everybody = has("Principal", &["*"])
        || principal.and_then(|who| who.get("AWS")).is_some_and(|who| many(who).contains(&&Value::from("*")));
    has("Effect", &["Deny"]) && everybody && has("Action", &["s3:*", "*"]) && asks_for_plain(statement)
}

fn asks_for_plain(statement: &Value) -> bool {
    let conditions = ["Bool", "BoolIfExists"].iter().filter_map(|name| statement.get("Condition")?.get(name));
    let values = conditions.filter_map(Value::as_object).flatten();
    let secure = values.filter(|(name, _)| name.eq_ignore_ascii_case("aws:SecureTransport"));
    secure.flat_map(|(_, value)| many(value)).any(|value| {
        value.as_bool() == Some(false)
            || value.as_str().is_some_and(|text| text.eq_ignore_ascii_case("false"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":"arn:x"},"Action":"s3:GetObject","Resource":"*"},
        {"Sid":"tls","Effect":"Deny","Principal":"*","Action":"s3:*","Resource":["arn:aws:s3:::b","arn:aws:s3:::b/*"],"Condition":{"Bool":{"aws:SecureTransport":"false"}}}]}"#;

    #[test]
    fn a_policy_that_denies_everybody_plain_connections_is_seen() {
        assert_eq!(denies_plain(GOOD), Some(true));
        let one = GOOD.replace("\"Statement\":[", "\"Statement\":").replace("}}}]}", "}}}}");
        let one = one
            .split_once("},\n")
            .map(|(_, last)| format!("{{\"Statement\":{last}"))
            .expect("two statements");
        assert_eq!(denies_plain(&one), Some(true), "{one}");
        assert_eq!(
            denies_plain(&GOOD.replace("\"Principal\":\"*\"", "\"Principal\":{\"AWS\":[\"*\"]}")),
            Some(true)
        );
        assert_eq!(denies_plain(&GOOD.replace("\"false\"", "false")), Some(true));
    }

    #[test]
    fn a_policy_that_does_less_is_not_taken_for_one_that_denies() {
        for (from, to) in [
            ("\"Deny\"", "\"Allow\""),
            ("\"Principal\":\"*\"", "\"Principal\":{\"AWS\":\"arn:y\"}"),
            ("\"s3:*\"", "\"s3:PutObject\""),
            ("\"false\"", "\"true\""),
            ("aws:SecureTransport", "aws:SourceVpc"),
        ] {
            assert_eq!(denies_plain(&GOOD.replace(from, to)), Some(false), "{from}");
        }
        assert_eq!(denies_plain("{}"), None);
        assert_eq!(denies_plain("not JSON"), None);
    }
}
