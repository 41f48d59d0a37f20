//! `probe` and `bucket` against servers whose dialects are known, as they are printed.

use std::io::BufRead;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use stash_testkit::servers::{self, S3Server};

use crate::world::{Ran, Running, World, finish};

/// A bucket of a server, and the words that name it.
struct Bucket {
    server: &'static S3Server,
    name: String,
    runtime: tokio::runtime::Runtime,
    world: World,
}

impl Bucket {
    /// A new bucket of radosgw, or of ministack.
    fn new(radosgw: bool, label: &str) -> Option<Bucket> {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let (server, name) = runtime.block_on(async {
            let server = if radosgw { servers::radosgw().await? } else { servers::ministack().await? };
            Some((server, server.new_bucket(label).await))
        })?;
        Some(Bucket { server, name, runtime, world: World::new() })
    }

    fn url(&self) -> String {
        format!("s3://{}/a/b?endpoint={}&region={}", self.name, self.server.endpoint(), self.server.region())
    }

    fn command(&self, words: &str) -> std::process::Command {
        let mut command = self.world.command(words);
        command.env("AWS_ACCESS_KEY_ID", self.server.access_key());
        command.env("AWS_SECRET_ACCESS_KEY", self.server.secret_key());
        command.env("AWS_EC2_METADATA_DISABLED", "true").env("STASH_URL", self.url());
        command
    }

    fn run(&self, words: &str) -> Ran {
        finish(self.command(words))
    }

    /// What is printed, with what differs from run to run in words of its own.
    fn printed(&self, ran: Ran) -> String {
        let text = ran.ok().replace(&self.server.endpoint(), "ENDPOINT").replace(&self.name, "BUCKET");
        let lines = text.lines().map(|line| match line {
            line if line.starts_with("1 KiB: PUT ") => "1 KiB: TIMES",
            line if line.contains(" requests in ") => "REQUESTS",
            line => line.trim_end(),
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn is_empty(&self) {
        let contents = self.runtime.block_on(self.server.contents(&self.name));
        assert_eq!(contents, (Vec::new(), Vec::new()));
    }
}

#[test]
fn a_probe_of_radosgw_prints_what_it_does_and_leaves_nothing() {
    let Some(bucket) = Bucket::new(true, "cli-probe") else { return };
    assert_eq!(bucket.printed(bucket.run("probe")), RADOSGW.trim());
    bucket.is_empty();
}

const RADOSGW: &str = "
s3://BUCKET/a/b at ENDPOINT (us-east-1)

QUESTION                                     ANSWER  SEEN
objects are put, read and deleted            yes
what was put is read at once                 yes     8 tries
what was deleted is gone at once             yes     8 tries
what was put is listed at once               yes     8 tries
what was deleted is not listed               yes     8 tries
a create-only PUT makes an object            yes
a create-only PUT of a taken key is refused  yes     412 PreconditionFailed
of 32 creates at once one succeeds           yes     8 rounds, one winner each; 412 PreconditionFailed ×248
a range has exactly its bytes                yes     10 bytes, bytes 50-59/200
a range counted from the end                 yes     10 bytes
a range beyond the end is refused            yes     416 InvalidRange
listings are in order                        yes
listings come whole, page by page            yes     25 keys in 4 pages of up to 7
a listing starts after a key                 yes     13 of 13 keys
deleting what is absent is no error          yes
1,000 keys are deleted by one request        yes     8 of 8 that were there are gone
a bulk delete answers key by key             yes     1000 of 1000 named
an absent key in a bulk delete is no error   yes
a bulk delete needs no Content-MD5           yes
an object is uploaded in parts               yes     parts of 6 MiB, 5 MiB, 1 KiB
parts of an upload may differ in size        yes
an upload may have 10,000 parts              yes     part 10,001 is taken as well
completing an upload can be create-only      no      the object was replaced
an upload under way is listed                yes
an aborted upload is gone                    yes
a SHA-256 of the body is accepted            yes
a wrong SHA-256 is refused                   no      accepted
a wrong Content-MD5 is refused               yes     400 BadDigest
SSE-S3: the store's keys                     no      accepted, and not confirmed
SSE-KMS: keys of a management service        no      400 InvalidArgument
SSE-C: a key in each request                 yes
objects are encrypted as the URL says        yes     it leaves that to the bucket
a wrong secret is refused                    yes     403 SignatureDoesNotMatch
its clock agrees with this machine's         yes     less than a second apart
deleted bytes are really gone                yes     the bucket keeps no versions

1 KiB: TIMES
REQUESTS
nothing of the probe is left in the bucket

FIT, with these fallbacks:
  - what is damaged on its way is noticed when it is read, by its digest, not when it is written; use TLS
";

#[test]
fn a_probe_in_json_has_every_question_and_the_verdict() {
    let Some(bucket) = Bucket::new(false, "cli-json") else { return };
    let report = bucket.run("probe --json").json().remove(0);
    assert_eq!((&report["verdict"], &report["left"]), (&json!("fit-with"), &json!([])));
    assert_eq!(report["consequences"][0]["check"], "secret-refused");
    let findings = report["findings"].as_array().expect("a list");
    let race = findings.iter().find(|finding| finding["what"] == "create-race").expect("asked");
    assert_eq!((&race["answer"], findings.len()), (&json!("yes"), 35));
    assert!(report["put"]["median_us"].as_u64().is_some() && report["requests"].as_u64() > Some(400));
    bucket.is_empty();
}

#[test]
fn a_bucket_is_looked_at_set_up_and_looked_at_again() {
    let Some(bucket) = Bucket::new(false, "cli-bucket") else { return };
    let before = bucket.printed(bucket.run("bucket check"));
    assert_eq!(before, BEFORE.trim());
    let dry = bucket.printed(bucket.run("bucket init"));
    assert_eq!(dry, DRY.trim());
    assert_eq!(bucket.printed(bucket.run("bucket check")), before, "a dry run changes nothing");
    let done = bucket.printed(bucket.run("bucket init --commit"));
    assert!(done.contains("lifecycle      set ") && !done.contains("dry run"), "{done}");
    let after = bucket.run("bucket check --json").json().remove(0);
    assert_eq!(after["ok"], true);
    let standing = |what: &str| {
        let items = after["items"].as_array().expect("a list");
        items.iter().find(|item| item["what"] == what).map(|item| item["standing"].clone())
    };
    assert_eq!(standing("aborts-uploads"), Some(json!("good")));
    assert_eq!(standing("public-access"), Some(json!("good")));
    let again = bucket.run("bucket init --commit --json").json().remove(0);
    let outcomes = again["steps"].as_array().expect("a list").iter().map(|step| &step["outcome"]);
    assert_eq!(outcomes.collect::<Vec<_>>(), ["already-so"; 3]);
}

const BEFORE: &str = "
s3://BUCKET/a/b at ENDPOINT

LOOKED AT                 IS       SEEN
the bucket can be used    good     it is there, and may be listed
left uploads are aborted  warning  no rule aborts them
no rule takes objects     good     there are no lifecycle rules
public access is blocked  warning  nothing is blocked
encrypted by default      good     AES256
no versions are kept      good     deleted bytes are gone
objects are not locked    good     off
TLS only                  warning  this endpoint is spoken to in the clear

what to do:
  - left uploads are aborted: what is left of an upload is stored and paid for: stash-admin bucket init sets a rule
  - public access is blocked: stash-admin bucket init blocks it
  - TLS only: use an https endpoint
";

const DRY: &str = "
s3://BUCKET/a/b at ENDPOINT

SETTING        OUTCOME    WHAT
lifecycle      would set  rule \"stash-abort-uploads:a/b/\" aborts them after 7 days; there are no other rules
public access  would set  all four ways to make objects public are blocked
encryption     is so      AES256

dry run: nothing was changed; pass --commit
";

#[test]
fn a_probe_that_is_interrupted_takes_everything_away() {
    let Some(bucket) = Bucket::new(false, "cli-interrupted") else { return };
    let mut running = Running::new(bucket.command("probe"));
    let mut line = String::new();
    running.err.read_line(&mut line).expect("readable");
    assert!(line.contains("/.stash-probe-"), "{line}");
    let pid = Pid::from_child(&running.child);
    kill_process(pid, Signal::INT).expect("it runs");
    let ran = running.end();
    assert!(ran.out.contains("nothing of the probe is left"), "{}{}", ran.out, ran.err);
    assert!(ran.code == 130 && ran.err.contains("nothing of the probe is left"), "{}", ran.err);
    bucket.is_empty();
}

#[test]
fn a_missing_bucket_is_said_by_each_of_them() {
    let Some(bucket) = Bucket::new(false, "cli-missing") else { return };
    let url = bucket.url().replace(&bucket.name, "not-there");
    let ran = bucket.run(&format!("probe {url}"));
    assert!(
        ran.code == 1 && ran.out.contains("UNFIT") && ran.out.contains("no bucket not-there"),
        "{}",
        ran.out
    );
    let ran = bucket.run(&format!("bucket check {url}"));
    assert!(ran.code == 1 && ran.out.contains("BAD") && ran.out.contains("no such bucket"), "{}", ran.out);
    bucket.run(&format!("bucket init {url}")).fails(1, &["not-there", "no such bucket", "create it"]);
}

#[test]
fn what_is_no_bucket_is_refused_before_anything_is_asked() {
    let world = World::new();
    for verb in ["probe", "bucket check", "bucket init"] {
        world.run(verb).fails(2, &["is no bucket", "s3://BUCKET/PREFIX"]);
        world.run(&format!("{verb} memory://")).fails(2, &["is no bucket"]);
        world.run(&format!("{verb} s3://b/a?colour=red")).fails(2, &["colour", "unknown"]);
    }
}
