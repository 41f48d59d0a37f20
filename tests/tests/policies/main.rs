//! The policies of `deploy/iam` against the calls that the code really makes.
//!
//! Each role works over radosgw through a proxy of its own that records what it asks, as a user who owns nothing and may do what
//! its policy says, told to the server as a policy of the bucket. Then
//!
//! - the server denied nothing but what is said here by name, and so does the evaluator of these tests ([`policy`]);
//! - each action that a policy allows was used, or stands in [`UNUSED`] with its reason: without it something is denied;
//! - a writer never lists, a sweeper never reads what was written;
//! - what the evaluator says is not allowed, the server denies ([`enforced`]).

mod enforced;
mod policy;
mod roles;

use std::collections::BTreeSet;

use policy::{Answer, Ask, Policy};
use roles::{Role, asks, play};

/// What a policy allows although these tests never ask for it, and why.
const UNUSED: [(Role, &str, &str); 0] = [];

fn read(path: &str) -> String {
    let path = format!("{}/../deploy/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The policy of a role, for this bucket and prefix.
fn text_of(role: Role, bucket: &str, prefix: &str) -> String {
    let text = read(&format!("iam/{}.json", role.name()));
    text.replace("BUCKET", bucket).replace("PREFIX", prefix)
}

fn policy_of(role: Role, bucket: &str, prefix: &str) -> Policy {
    Policy::parse(&text_of(role, bucket, prefix)).expect("a policy of deploy/iam")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_each_role_asks_its_policy_allows_and_what_it_allows_is_asked() {
    let Some(played) = play().await else { return };
    for (role, requests) in &played.requests {
        let policy = policy_of(*role, &played.bucket, &played.prefix);
        let asked: BTreeSet<Ask> = requests.iter().flat_map(asks).collect();
        assert!(!asked.is_empty(), "{role:?} asked nothing");
        for ask in &asked {
            assert_eq!(
                policy.answer(ask),
                Answer::Allowed,
                "{role:?} asks what its policy does not allow: {ask:?}"
            );
        }
        for (place, rule) in policy.rules.iter().enumerate() {
            let less = policy.without(place);
            let missed = asked.iter().any(|ask| less.answer(ask) != Answer::Allowed);
            let reason = UNUSED.iter().find(|(of, action, _)| of == role && *action == rule.action);
            assert!(
                missed != reason.is_some(),
                "{role:?}: {} of {} is allowed, asked for: {missed}, with a reason not to be: {reason:?}",
                rule.action,
                rule.sid
            );
        }
        for request in requests {
            let denied = request.status == Some(403);
            assert_eq!(denied, played.is_expected_denial(*role, request), "{role:?}: {request:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_never_lists_and_a_sweeper_never_reads() {
    let Some(played) = play().await else { return };
    let of = |role| played.requests.iter().filter(move |(of, _)| *of == role).flat_map(|(_, all)| all);
    for role in [Role::Writer, Role::Consumer] {
        for request in of(role) {
            assert!(!request.call.lists(), "{role:?}: {request:?}");
        }
    }
    for request in of(Role::Sweeper) {
        let read = request.call.action() == "s3:GetObject" && !request.key.ends_with("/stash.json");
        assert!(!read, "{request:?}");
    }
}

#[test]
fn no_role_reaches_out_of_its_prefix_or_does_what_is_not_its_own() {
    let (bucket, prefix) = ("arn:aws:s3:::b", "arn:aws:s3:::b/p");
    let object = |action: &str| Ask::new(action, format!("{prefix}/s1/i1/x.parquet"));
    let list = |below: &str| Ask::new("s3:ListBucket", bucket).with("s3:prefix", below);
    for role in Role::ALL {
        let policy = policy_of(role, "b", "p");
        let may = |ask: &Ask| policy.answer(ask) == Answer::Allowed;
        for action in ["s3:PutObject", "s3:GetObject", "s3:DeleteObject", "s3:AbortMultipartUpload"] {
            for elsewhere in
                ["arn:aws:s3:::b/pp/x", "arn:aws:s3:::b/x", "arn:aws:s3:::bb/p/x", "arn:aws:s3:::b/p"]
            {
                assert!(!may(&Ask::new(action, elsewhere)), "{role:?} {action} {elsewhere}");
            }
        }
        for action in [
            "s3:DeleteObjectVersion",
            "s3:PutObjectAcl",
            "s3:PutBucketPolicy",
            "s3:PutLifecycleConfiguration",
            "s3:DeleteBucket",
            "s3:BypassGovernanceRetention",
        ] {
            assert!(!may(&object(action)) && !may(&Ask::new(action, bucket)), "{role:?} {action}");
        }
        assert_eq!(may(&object("s3:PutObject")), role == Role::Writer);
        assert_eq!(may(&object("s3:GetObject")), role != Role::Sweeper);
        assert_eq!(may(&object("s3:AbortMultipartUpload")), role != Role::Consumer);
        assert_eq!(may(&list("p/s1/")), role == Role::Sweeper);
        assert!(
            !may(&list("pp/")) && !may(&list("")) && !may(&Ask::new("s3:ListBucket", bucket)),
            "{role:?}"
        );
    }
}

#[test]
fn the_bucket_denies_what_is_not_encrypted_on_its_way_or_at_rest() {
    let policy = read("iam/bucket-policy.json").replace("BUCKET", "b");
    let policy = Policy::parse(&policy).expect("a policy");
    let put = || Ask::new("s3:PutObject", "arn:aws:s3:::b/p/x").with("s3:TlsVersion", "1.3");
    let get = || Ask::new("s3:GetObject", "arn:aws:s3:::b/p/x");
    let (safe, sse) = (|ask: Ask| ask.with("aws:SecureTransport", "true"), "s3:x-amz-server-side-encryption");
    for (ask, answer) in [
        (safe(put()).with(sse, "AES256"), Answer::Unmentioned),
        (safe(put()).with(sse, "aws:kms"), Answer::Unmentioned),
        (safe(put()), Answer::Denied),
        (safe(put()).with(sse, "rot13"), Answer::Denied),
        (put().with(sse, "AES256").with("aws:SecureTransport", "false"), Answer::Denied),
        (safe(get()), Answer::Unmentioned),
        (safe(get()).with("s3:TlsVersion", "1.1"), Answer::Denied),
        (get().with("aws:SecureTransport", "false"), Answer::Denied),
        (Ask::new("s3:ListBucket", "arn:aws:s3:::b").with("aws:SecureTransport", "false"), Answer::Denied),
    ] {
        assert_eq!(policy.answer(&ask), answer, "{ask:?}");
    }
}

#[test]
fn no_rule_of_the_lifecycle_ends_an_object_that_is_there() {
    for path in ["iam/lifecycle.json", "compose/lifecycle.json"] {
        let rules: serde_json::Value = serde_json::from_str(&read(path)).expect("JSON");
        let rules = rules["Rules"].as_array().expect("rules");
        assert!(
            rules.iter().any(|rule| rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"].is_u64())
        );
        for rule in rules {
            assert_eq!(rule["Status"], "Enabled", "{path}");
            assert!(rule["Filter"]["Prefix"].as_str().is_some_and(|prefix| prefix.ends_with('/')), "{path}");
            assert!(rule["Transitions"].is_null(), "{path}: parts are read whole, and soon");
            let expiration = rule["Expiration"].as_object();
            let only_markers =
                expiration.is_none_or(|all| all.keys().all(|key| key == "ExpiredObjectDeleteMarker"));
            assert!(only_markers, "{path}: {rule}");
        }
    }
}

#[test]
fn the_policy_of_the_compose_file_is_that_of_the_roles() {
    let mut compose = Policy::parse(&read("compose/bucket-policy.json")).expect("a policy");
    // Objects belong to who put them, there: so the bucket's owner is let read, to verify.
    let owners = compose.rules.pop().map(|rule| (rule.sid, rule.action));
    assert_eq!(owners, Some(("OwnerReads".to_owned(), "s3:GetObject".to_owned())));
    let mut rules = Vec::new();
    for role in Role::ALL {
        for mut rule in policy_of(role, "stash", "demo").rules {
            rule.sid = format!("{}{}", role.title(), rule.sid);
            rules.push(rule);
        }
    }
    assert_eq!(compose.rules, rules);
    assert_eq!(read("compose/lifecycle.json"), read("iam/lifecycle.json").replace("PREFIX", "demo"));
    let text: serde_json::Value = serde_json::from_str(&read("compose/bucket-policy.json")).expect("JSON");
    for statement in text["Statement"].as_array().expect("statements") {
        let sid = statement["Sid"].as_str().expect("a name");
        let role = Role::ALL.into_iter().find(|role| sid.starts_with(role.title()));
        let user = format!("arn:aws:iam:::user/{}", role.map_or("owner", Role::name));
        assert_eq!(statement["Principal"]["AWS"], serde_json::json!([user]), "{sid}");
    }
}

#[test]
fn keys_are_used_through_the_store_alone_and_only_writers_encrypt() {
    let policy = |role: &str| Policy::parse(&read(&format!("iam/{role}-kms.json"))).expect("a policy");
    let ask = |action: &str| {
        Ask::new(action, "arn:aws:kms:REGION:ACCOUNT:key/KEY")
            .with("kms:ViaService", "s3.REGION.amazonaws.com")
    };
    let (writer, consumer) = (policy("writer"), policy("consumer"));
    assert_eq!(writer.answer(&ask("kms:GenerateDataKey")), Answer::Allowed);
    assert_eq!(consumer.answer(&ask("kms:GenerateDataKey")), Answer::Unmentioned);
    for policy in [writer, consumer] {
        assert_eq!(policy.answer(&ask("kms:Decrypt")), Answer::Allowed);
        let direct = Ask::new("kms:Decrypt", "arn:aws:kms:REGION:ACCOUNT:key/KEY");
        assert_eq!(policy.answer(&direct), Answer::Unmentioned, "not past the store");
        assert_eq!(policy.answer(&ask("kms:ScheduleKeyDeletion")), Answer::Unmentioned);
    }
}
