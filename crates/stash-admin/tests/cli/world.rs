//! A folder with a stash in it, and the binary to run on it.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// The user whom every system has, and who may do nothing in particular.
const NOBODY: u32 = 65534;

/// What a run of the binary gave.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// The output, of a run that must have succeeded.
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }

    /// The error, of a run that must have failed with `code`; it names all of `wanted` and prints once.
    pub fn fails(self, code: i32, wanted: &[&str]) -> String {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        for wanted in wanted {
            assert!(self.err.contains(wanted), "{wanted:?} is not in: {}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self.err
    }

    /// The JSON documents on stdout, one a line, of a run that must have succeeded.
    pub fn json(self) -> Vec<Value> {
        parse_lines(&self.ok())
    }
}

pub fn parse_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Updates as what they sum up to: (row, time) to diff, zeros left out.
pub type Sums = BTreeMap<(String, u64), i64>;

pub fn add(sums: &mut Sums, row: String, time: u64, diff: i64) {
    let sum = sums.entry((row, time)).or_insert(0);
    *sum += diff;
    if *sum == 0 {
        sums.retain(|_, sum| *sum != 0);
    }
}

/// A temporary folder, a stash within it that nobody made yet.
pub struct World {
    folder: TempDir,
}

impl World {
    pub fn new() -> World {
        World { folder: tempfile::tempdir().expect("a folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("readable")
    }

    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("written");
        path
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.path("stash").display())
    }

    /// The binary with these words, the stash named by the environment.
    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stash-admin"));
        command.args(words.split_whitespace()).current_dir(self.folder.path());
        command.env("STASH_URL", self.url()).stdin(Stdio::null());
        command
    }

    pub fn run(&self, words: &str) -> Ran {
        finish(self.command(words))
    }

    /// The same where nobody reads what it prints.
    pub fn run_unread(&self, words: &str) -> Ran {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let child = self.command(words).stdout(writer).stderr(Stdio::piped()).spawn().expect("it starts");
        ran(child.wait_with_output().expect("it ends"))
    }

    /// The same by somebody whom permissions stop, who may do all in the stash but in the folders `closed`. `None`
    /// where no such one can run the binary.
    pub fn run_barred(&self, words: &str, closed: &[PathBuf]) -> Option<Ran> {
        let open = |path: &Path| drop(fs::set_permissions(path, fs::Permissions::from_mode(0o777)));
        open(self.folder.path());
        open(&self.path("stash"));
        each(&self.path("stash"), &mut |path| open(path));
        closed.iter().for_each(|path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o555)).expect("closed");
        });
        let mut command = self.command(words);
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.output();
        closed.iter().for_each(|path| open(path));
        match output {
            Ok(output) => Some(ran(output)),
            Err(error) => {
                eprintln!("skipped: whom permissions stop cannot run the binary: {error}");
                None
            }
        }
    }

    /// The binary with its pipes at hand.
    pub fn spawn(&self, words: &str) -> Running {
        Running::new(self.command(words))
    }

    /// A change file `name` with columns id, name, t, d: three rows at each of `times`, and a retraction of
    /// one of them at the next time. And what it sums up to.
    pub fn changes(&self, name: &str, times: std::ops::Range<u64>) -> Sums {
        let (mut text, mut sums) = (String::from("id,name,t,d\n"), Sums::new());
        for time in times.clone() {
            for id in [time * 10, time * 10 + 1, time * 10 + 1] {
                text += &format!("{id},row {id},{time},1\n");
                add(&mut sums, row(id), time, 1);
            }
            if time > times.start {
                let id = time * 10 - 10;
                text += &format!("{id},row {id},{time},-1\n");
                add(&mut sums, row(id), time, -1);
            }
        }
        self.write(name, &text);
        sums
    }

    /// Loads such a file.
    pub fn load(&self, file: &str, sink: &str, more: &str) -> Ran {
        self.run(&load_words(file, sink, more))
    }

    /// What a sink holds, read without a consumer.
    pub fn sums(&self, sink: &str) -> Sums {
        sums_of(&self.run(&format!("read --sink {sink}")).ok())
    }

    pub fn chain(&self, sink: &str) -> Value {
        self.run(&format!("chain {sink} --json")).json().remove(0)
    }

    pub fn upper(&self, sink: &str) -> Value {
        self.chain(sink)["upper"].clone()
    }

    /// Where each consumer is.
    pub fn acknowledged(&self, sink: &str) -> Vec<(String, Value)> {
        let rows = self.run(&format!("consumers {sink} --json")).json();
        rows.iter()
            .map(|row| (row["consumer"].as_str().expect("a name").to_owned(), row["acknowledged"].clone()))
            .collect()
    }

    /// The objects in the store but for the stash's own, as paths below `blobs`.
    pub fn blobs(&self) -> Vec<String> {
        let root = self.path("stash/blobs");
        let mut found = Vec::new();
        walk(&root, &mut |path| {
            let name = path.strip_prefix(&root).expect("below").display().to_string();
            if name != "stash.json" {
                found.push(name);
            }
        });
        found.sort();
        found
    }

    /// Every invariant holds, and what lies in the store is what the chains reference.
    pub fn at_rest(&self) {
        let reports = self.run("verify --json").json();
        assert!(reports.iter().all(|report| report["ok"] == true), "{reports:?}");
        let mut referenced: Vec<String> = Vec::new();
        for sink in self.run("sinks --json").json() {
            let name = sink["name"].as_str().expect("a name");
            let parts = self.run(&format!("parts {name} --json")).json();
            referenced.extend(parts.iter().map(|part| part["key"].as_str().expect("a key").to_owned()));
        }
        referenced.sort();
        assert_eq!(self.blobs(), referenced);
    }
}

pub fn load_words(file: &str, sink: &str, more: &str) -> String {
    format!("load {file} --sink {sink} --time-column t --diff-column d {more}")
}

/// A row of [`World::changes`] as `read` prints it, without time and diff.
fn row(id: u64) -> String {
    format!("{{\"id\":{id},\"name\":\"row {id}\"}}")
}

/// What printed NDJSON sums up to; each update within the progress that closes its batch (I3).
pub fn sums_of(ndjson: &str) -> Sums {
    let (mut sums, mut open) = (Sums::new(), Vec::new());
    let mut lower = 0;
    for mut line in parse_lines(ndjson) {
        if let Some(progress) = line.get("_progress") {
            let upper = progress.as_u64().unwrap_or(u64::MAX);
            assert!(open.drain(..).all(|time| lower <= time && time < upper), "{upper} closes other times");
            lower = upper;
            continue;
        }
        let fields = line.as_object_mut().expect("an object");
        let time = fields.remove("_time").expect("a time").as_u64().expect("a number");
        let diff = fields.remove("_diff").expect("a diff").as_i64().expect("a number");
        open.push(time);
        let before = sums.insert((line.to_string(), time), diff);
        assert_eq!(before, None, "not consolidated: {line} at {time}");
    }
    assert!(open.is_empty(), "the last batch was not closed");
    sums
}

/// Everything below a folder, folders too.
fn each(folder: &Path, found: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        found(&path);
        if path.is_dir() {
            each(&path, found);
        }
    }
}

fn walk(folder: &Path, found: &mut dyn FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() { walk(&path, found) } else { found(&path) }
    }
}

pub fn finish(mut command: Command) -> Ran {
    ran(command.output().expect("it runs"))
}

fn ran(output: Output) -> Ran {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

/// A run under way. Killed when dropped.
pub struct Running {
    pub child: Child,
    pub out: Option<BufReader<std::process::ChildStdout>>,
    pub err: BufReader<std::process::ChildStderr>,
}

impl Running {
    pub fn new(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let err = BufReader::new(child.stderr.take().expect("piped"));
        Running { child, out: Some(out), err }
    }

    /// Reads stderr until `wanted` batches were accepted.
    pub fn until_accepted(&mut self, wanted: usize) {
        (0..wanted).for_each(|_| drop(self.until_said("accepted [")));
    }

    /// Reads stderr up to and including the next line that holds `wanted`, and gives that line.
    pub fn until_said(&mut self, wanted: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.err.read_line(&mut line).expect("readable"), 0, "it ended too early");
            if line.contains(wanted) {
                return line;
            }
        }
    }

    /// Reads stdout up to and including the next progress line.
    pub fn until_progress(&mut self) -> String {
        let mut text = String::new();
        loop {
            let start = text.len();
            let out = self.out.as_mut().expect("open");
            assert_ne!(out.read_line(&mut text).expect("readable"), 0, "it ended too early: {text}");
            if text.get(start..).is_some_and(|line| line.contains("_progress")) {
                return text;
            }
        }
    }

    /// Stops reading its output, and waits for the end.
    pub fn close_and_end(mut self) -> Ran {
        self.out = None;
        self.end()
    }

    /// Waits for the end, and gives what was still said.
    pub fn end(mut self) -> Ran {
        let (mut out, mut err) = (String::new(), String::new());
        self.err.read_to_string(&mut err).expect("readable");
        if let Some(mut rest) = self.out.take() {
            rest.read_to_string(&mut out).expect("readable");
        }
        let status = self.child.wait().expect("it ends");
        Ran { code: status.code().unwrap_or(-1), out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
