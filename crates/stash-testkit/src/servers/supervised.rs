//! Servers under a shell that outlives nobody.
//!
//! A test process may end by a return, a panic, an abort or SIGKILL, and statics are never dropped. So servers are
//! not its children but those of a `sh`, which has one end of a pipe for its standard input: when the test process is gone,
//! however it went, the pipe ends, and the shell kills the servers and removes their folder. It stands in a process group of
//! its own, so that an interrupt from the keyboard does not take it before its servers.
//!
//! What a script finds and owes:
//!
//! - `DIR`, a folder of its own with a folder `log` in it; `PORTS`, free ports of the loopback, by blanks; what else it is given.
//! - It minds SIGPIPE: what it prints may find no reader, since the test process may end at any time.
//! - It prints `ready` when its servers run (they need not answer yet), and `done` after each command it read.
//! - At the end of its input it stops everything and removes `DIR`. Before the end it fails by exiting with what its logs say
//!   on standard output.
//!
//! Ports lie below those which the kernel hands out to clients. Two test processes may find the same port free; then
//! one fails to start, and is started again on other ports.

use std::{
    fmt, fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// A script and what it starts. Ends with this, or with the process.
pub(crate) struct Supervised {
    name: &'static str,
    dir: PathBuf,
    ports: Vec<u16>,
    shell: Mutex<Shell>,
}

struct Shell {
    child: Child,
    // Taken at the end only: dropping it is what ends the shell.
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Supervised {
    /// Runs `script` with `ports` free ports and these variables, until it says `ready`.
    pub(crate) fn start(
        name: &'static str,
        script: &str,
        ports: usize,
        variables: &[(&str, &str)],
    ) -> Result<Supervised, String> {
        let dir = folder(name).map_err(|error| format!("no folder for {name}: {error}"))?;
        let ports = free_ports(ports);
        let mut child = shell(name, script, &dir, &ports, variables)
            .map_err(|error| format!("no shell for {name}: {error}"))?;
        let commands = child.stdin.take();
        let answers = child.stdout.take().map(BufReader::new).ok_or("a shell without output")?;
        let mut shell = Shell { child, commands, answers };
        shell.expect("ready")?;
        Ok(Supervised { name, dir, ports, shell: Mutex::new(shell) })
    }

    /// Runs a script for a test process that ends before its servers are ready, and returns its folder once it ended.
    #[cfg(test)]
    pub(crate) fn abandon(script: &str, ports: usize, variables: &[(&str, &str)]) -> PathBuf {
        let dir = folder("abandoned").expect("a folder");
        let mut child = shell("abandoned", script, &dir, &free_ports(ports), variables).expect("it runs");
        drop((child.stdin.take(), child.stdout.take()));
        child.wait().expect("it ends");
        dir
    }

    /// Has the script carry out a command.
    pub(crate) fn ask(&self, command: &str) -> Result<(), String> {
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = match &mut shell.commands {
            Some(commands) => writeln!(commands, "{command}").and_then(|()| commands.flush()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        sent.map_err(|error| format!("{} does not listen: {error}", self.name))?;
        shell.expect("done")
    }

    /// Waits until `answers` says so. What ended meanwhile, or does not answer for two minutes, is an error with its logs.
    pub(crate) async fn until<F: Future<Output = bool>>(
        &self,
        mut answers: impl FnMut() -> F,
    ) -> Result<(), String> {
        let polling = async {
            while !answers().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), polling)
            .await
            .map_err(|_| format!("{} does not answer\n{}", self.name, self.logs()))
    }

    /// The ports it was given, in that order.
    pub(crate) fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Its folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn logs(&self) -> String {
        let files = fs::read_dir(self.dir.join("log")).into_iter().flatten().flatten();
        let texts = files.map(|file| fs::read(file.path()).unwrap_or_default());
        let texts = texts.map(|text| String::from_utf8_lossy(&text).into_owned());
        let tail = |text: String| text[text.len() - text.len().min(2000)..].to_owned();
        texts.map(|text| if text.is_ascii() { tail(text) } else { text }).collect()
    }
}

impl fmt::Debug for Supervised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervised")
            .field("name", &self.name)
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        let shell = self.shell.get_mut().unwrap_or_else(PoisonError::into_inner);
        shell.commands = None;
        let _ = shell.child.wait();
    }
}

impl Shell {
    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|error| error.to_string())?;
        if line.trim_end() == wanted {
            return Ok(());
        }
        let _ = self.answers.read_to_string(&mut line);
        let _ = self.child.wait();
        Err(line)
    }
}

/// Runs a script.
fn shell(
    name: &str,
    script: &str,
    dir: &Path,
    ports: &[u16],
    variables: &[(&str, &str)],
) -> io::Result<Child> {
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    Command::new("sh")
        .args(["-c", script, name])
        .envs(variables.iter().copied())
        .env("DIR", dir)
        .env("PORTS", ports.join(" "))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(dir.join("log/supervisor"))?)
        .process_group(0)
        .spawn()
}

fn folder(name: &str) -> io::Result<PathBuf> {
    let dir = tempfile::Builder::new().prefix(&format!("stash-{name}-")).tempdir()?.keep();
    fs::create_dir(dir.join("log"))?;
    Ok(dir)
}

/// Ports nobody listens on. Where the search begins depends on the process, so that processes seldom meet.
fn free_ports(count: usize) -> Vec<u16> {
    const FIRST: u16 = 12_000;
    const SPAN: u32 = 18_000;
    static NEXT: Mutex<Option<u32>> = Mutex::new(None);
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut at = next.unwrap_or_else(|| std::process::id().wrapping_mul(0x9e37_79b1) >> 8);
    let mut ports = Vec::new();
    while ports.len() < count {
        at = at.wrapping_add(1);
        let port = FIRST + u16::try_from(at % SPAN).unwrap_or_default();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            ports.push(port);
        }
    }
    *next = Some(at);
    ports
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// Sleeps longer than any test, and leaves a file named by its process id.
    const SLEEPER: &str = r#"
        trap 'kill -9 $sleeper; wait; rm -rf "$DIR"' EXIT
        sleep 1000 > /dev/null & sleeper=$!
        echo ready
        while read -r command; do echo $sleeper > "$DIR/$command"; echo done; done
    "#;

    fn sleeper() -> (Supervised, PathBuf, PathBuf) {
        let supervised = Supervised::start("sleeper", SLEEPER, 2, &[]).expect("it starts");
        supervised.ask("pid").expect("it answers");
        let pid = fs::read_to_string(supervised.dir().join("pid")).expect("it was written");
        let process = Path::new("/proc").join(pid.trim());
        let dir = supervised.dir().to_owned();
        (supervised, dir, process)
    }

    #[test]
    fn what_was_started_ends_with_its_handle() {
        let (supervised, dir, process) = sleeper();
        assert!(process.exists() && dir.exists());
        drop(supervised);
        assert!(!process.exists() && !dir.exists());
    }

    #[test]
    fn what_was_started_ends_with_a_process_that_aborts() {
        let this = std::env::current_exe().expect("a test has a path");
        let child = Command::new(this)
            .args(["--exact", "servers::supervised::tests::aborts_with_a_server", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        let output = child.wait_with_output().expect("it ends");
        assert!(!output.status.success(), "it aborts");
        let output = String::from_utf8(output.stdout).expect("text");
        let line = output.lines().find_map(|line| line.strip_prefix("started ")).expect("it started");
        let (dir, process) = line.split_once(' ').expect("two paths");
        // The shell needs its moment. A hang here is what the test is for.
        while Path::new(dir).exists() || Path::new(process).exists() {
            std::thread::yield_now();
        }
    }

    #[test]
    #[ignore = "run by the test above, in a process of its own"]
    fn aborts_with_a_server() {
        let (supervised, dir, process) = sleeper();
        println!("\nstarted {} {}", dir.display(), process.display());
        std::mem::forget(supervised);
        std::process::abort();
    }

    #[test]
    fn a_script_that_fails_says_what_its_logs_say() {
        let failing = "echo 'no such thing'; rm -r \"$DIR\"; exit 1";
        let error = Supervised::start("failing", failing, 0, &[]).expect_err("it fails");
        assert!(error.contains("no such thing"), "{error}");
    }

    #[test]
    fn ports_differ() {
        let (one, other) = (free_ports(3), free_ports(3));
        assert!(one.iter().all(|port| !other.contains(port)), "{one:?} {other:?}");
    }
}
