//! Policies as S3 evaluates them, as far as those of `deploy/iam` go: whoever is not allowed is denied, and a statement that
//! denies wins over all that allow.
//!
//! - An action and a resource match by `*` and `?`.
//! - A condition holds if all its operators do; an operator if all its keys do; a key if one of its values does. What the
//!   request does not have matches nothing, so a *not* holds.
//! - What this does not know (an operator, an element) is an error, and no guess.

use std::collections::BTreeMap;

use serde_json::Value;

/// What is asked, and by which circumstances.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ask {
    /// The action, such as `s3:GetObject`.
    pub action: String,
    /// The ARN of what it is about.
    pub resource: String,
    /// The keys of conditions that the request has.
    pub context: BTreeMap<String, String>,
}

impl Ask {
    /// An action on a resource, without circumstances.
    pub fn new(action: &str, resource: impl Into<String>) -> Ask {
        Ask { action: action.to_owned(), resource: resource.into(), context: BTreeMap::new() }
    }

    /// The same under a circumstance.
    pub fn with(mut self, key: &str, value: &str) -> Ask {
        self.context.insert(key.to_owned(), value.to_owned());
        self
    }
}

/// What a policy says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A statement allows it, and none denies it.
    Allowed,
    /// A statement denies it.
    Denied,
    /// No statement is about it.
    Unmentioned,
}

/// A statement, with one action: a statement of several is several of these.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The statement's name.
    pub sid: String,
    /// Whether it allows; else it denies.
    pub allows: bool,
    /// Its action, or a pattern of some.
    pub action: String,
    resources: Vec<String>,
    conditions: Vec<(String, String, Vec<String>)>,
}

/// A policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Its rules, in its order.
    pub rules: Vec<Rule>,
}

impl Policy {
    /// Reads a policy, and refuses what it does not know.
    pub fn parse(json: &str) -> Result<Policy, String> {
        let value: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
        only(&value, &["Version", "Statement"])?;
        if value["Version"] != "2012-10-17" {
            return Err(format!("version {}", value["Version"]));
        }
        let statements = value["Statement"].as_array().ok_or("no list of statements")?;
        let rules = statements.iter().map(rules).collect::<Result<Vec<_>, _>>()?;
        Ok(Policy { rules: rules.concat() })
    }

    /// What it says of a request.
    pub fn answer(&self, ask: &Ask) -> Answer {
        let about: Vec<&Rule> = self.rules.iter().filter(|rule| rule.is_about(ask)).collect();
        match (about.iter().any(|rule| !rule.allows), about.is_empty()) {
            (true, _) => Answer::Denied,
            (false, true) => Answer::Unmentioned,
            (false, false) => Answer::Allowed,
        }
    }

    /// The same policy without one of its rules.
    pub fn without(&self, place: usize) -> Policy {
        let mut rules = self.rules.clone();
        rules.remove(place);
        Policy { rules }
    }
}

fn rules(statement: &Value) -> Result<Vec<Rule>, String> {
    only(statement, &["Sid", "Effect", "Principal", "Action", "Resource", "Condition"])?;
    let sid = statement["Sid"].as_str().ok_or("a statement without a name")?.to_owned();
    let allows = match statement["Effect"].as_str() {
        Some("Allow") => true,
        Some("Deny") => false,
        other => return Err(format!("{sid}: effect {other:?}")),
    };
    let resources = texts(&statement["Resource"]).map_err(|error| format!("{sid}: {error}"))?;
    let mut conditions = Vec::new();
    for (operator, keys) in statement["Condition"].as_object().into_iter().flatten() {
        if !OPERATORS.contains(&operator.as_str()) {
            return Err(format!("{sid}: operator {operator}"));
        }
        for (key, values) in keys.as_object().ok_or(format!("{sid}: {operator} without keys"))? {
            conditions.push((operator.clone(), key.clone(), texts(values)?));
        }
    }
    let actions = texts(&statement["Action"]).map_err(|error| format!("{sid}: {error}"))?;
    let rule = |action| Rule {
        sid: sid.clone(),
        allows,
        action,
        resources: resources.clone(),
        conditions: conditions.clone(),
    };
    Ok(actions.into_iter().map(rule).collect())
}

/// The operators that are known.
const OPERATORS: [&str; 5] = ["StringEquals", "StringNotEquals", "StringLike", "Bool", "NumericLessThan"];

fn only(value: &Value, known: &[&str]) -> Result<(), String> {
    let object = value.as_object().ok_or("no object")?;
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("unknown element {key}")),
        None => Ok(()),
    }
}

/// A text, or a list of some.
fn texts(value: &Value) -> Result<Vec<String>, String> {
    let one = |value: &Value| value.as_str().map(str::to_owned).ok_or(format!("{value} is no text"));
    match value {
        Value::Array(values) if !values.is_empty() => values.iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

impl Rule {
    /// Whether it is about a request, and its conditions hold.
    pub fn is_about(&self, ask: &Ask) -> bool {
        // Actions are compared without regard to case, resources are not.
        matches(&self.action.to_lowercase(), &ask.action.to_lowercase())
            && self.resources.iter().any(|resource| matches(resource, &ask.resource))
            && self
                .conditions
                .iter()
                .all(|(operator, key, values)| holds(operator, ask.context.get(key), values))
    }
}

fn holds(operator: &str, is: Option<&String>, values: &[String]) -> bool {
    let any = |test: &dyn Fn(&str, &str) -> bool| {
        is.is_some_and(|is| values.iter().any(|value| test(value.as_str(), is.as_str())))
    };
    match operator {
        "StringEquals" => any(&|value, is| value == is),
        "StringNotEquals" => !any(&|value, is| value == is),
        "StringLike" => any(&matches),
        "Bool" => any(&str::eq_ignore_ascii_case),
        "NumericLessThan" => any(&|value, is| match (value.parse::<f64>(), is.parse::<f64>()) {
            (Ok(value), Ok(is)) => is < value,
            _ => false,
        }),
        other => unreachable!("{other} was refused when the policy was read"),
    }
}

/// Whether `text` fits `pattern`, in which `*` stands for anything and `?` for one character.
fn matches(pattern: &str, text: &str) -> bool {
    match (pattern.chars().next(), text.chars().next()) {
        (None, None) => true,
        (Some('*'), _) => {
            let rest = &pattern[1..];
            matches(rest, text)
                || text.char_indices().any(|(at, c)| matches(rest, &text[at + c.len_utf8()..]))
        }
        (Some('?'), Some(c)) => matches(&pattern[1..], &text[c.len_utf8()..]),
        (Some(p), Some(c)) if p == c => matches(&pattern[p.len_utf8()..], &text[c.len_utf8()..]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"{"Version":"2012-10-17","Statement":[
        {"Sid":"A","Effect":"Allow","Action":["s3:Get*","s3:PutObject"],"Resource":"arn:b/p/*"},
        {"Sid":"L","Effect":"Allow","Action":"s3:ListBucket","Resource":"arn:b","Condition":{"StringLike":{"s3:prefix":"p/*"}}},
        {"Sid":"D","Effect":"Deny","Action":"*","Resource":"arn:b/p/secret/*","Condition":{"Bool":{"tls":"false"}}},
        {"Sid":"E","Effect":"Deny","Action":"s3:PutObject","Resource":"*","Condition":{"StringNotEquals":{"sse":["a","b"]}}}]}"#;

    #[test]
    fn what_is_not_allowed_is_not_and_what_is_denied_is_even_if_it_is_allowed() {
        let policy = Policy::parse(POLICY).expect("a policy");
        let answer = |action: &str, resource: &str, context: &[(&str, &str)]| {
            let ask = Ask::new(action, resource);
            policy.answer(&context.iter().fold(ask, |ask, (key, value)| ask.with(key, value)))
        };
        use Answer::{Allowed, Denied, Unmentioned};
        assert_eq!(answer("s3:GetObject", "arn:b/p/x", &[]), Allowed);
        assert_eq!(answer("s3:getobject", "arn:b/p/x/y", &[]), Allowed, "actions have no case");
        assert_eq!(answer("s3:GetObject", "arn:b/P/x", &[]), Unmentioned, "resources have");
        assert_eq!(answer("s3:GetObject", "arn:b/q/x", &[]), Unmentioned);
        assert_eq!(answer("s3:DeleteObject", "arn:b/p/x", &[]), Unmentioned);
        assert_eq!(answer("s3:ListBucket", "arn:b", &[("s3:prefix", "p/")]), Allowed);
        assert_eq!(answer("s3:ListBucket", "arn:b", &[("s3:prefix", "pq/")]), Unmentioned);
        assert_eq!(answer("s3:ListBucket", "arn:b", &[]), Unmentioned, "an absent key fits nothing");
        assert_eq!(answer("s3:GetObject", "arn:b/p/secret/x", &[("tls", "false")]), Denied);
        assert_eq!(answer("s3:GetObject", "arn:b/p/secret/x", &[("tls", "true")]), Allowed);
        assert_eq!(answer("s3:PutObject", "arn:b/p/x", &[("sse", "b")]), Allowed);
        assert_eq!(answer("s3:PutObject", "arn:b/p/x", &[("sse", "c")]), Denied);
        assert_eq!(answer("s3:PutObject", "arn:b/p/x", &[]), Denied, "a not holds of what is absent");
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (from, to) in [
            ("StringLike", "StringLikeIfExists"),
            ("\"Resource\":\"*\"", "\"NotResource\":\"*\""),
            ("2012-10-17", "2008-10-17"),
            ("\"Sid\":\"A\",", ""),
        ] {
            Policy::parse(&POLICY.replacen(from, to, 1)).expect_err(to);
        }
    }

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("a?c", "aüc", true),
            ("a?c", "ac", false),
            ("*/p/*", "x/p/p/y", true),
            ("abc", "abcd", false),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }
}
