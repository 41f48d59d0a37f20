//! A PostgreSQL server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Supervised, program, skipped, start};

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// Whether it offers TLS, with a certificate for `localhost` and 127.0.0.1 by an authority of its own.
    pub tls: bool,
    /// The password of its user, `stash`: letters and digits.
    pub password: String,
}

impl Default for PostgresOptions {
    fn default() -> PostgresOptions {
        PostgresOptions { tls: false, password: "password-of-a-server-for-tests".replace('-', "") }
    }
}

/// A PostgreSQL server. Its user `stash` may do anything.
#[derive(Debug)]
pub struct PostgresServer {
    options: PostgresOptions,
    bin: PathBuf,
    databases: AtomicU64,
    supervised: Arc<Supervised>,
}

const SCRIPT: &str = include_str!("postgres.sh");

impl PostgresOptions {
    fn variables(&self, bin: &Path) -> Vec<(&'static str, String)> {
        vec![
            ("BIN", bin.display().to_string()),
            ("PASSWORD", self.password.clone()),
            ("TLS", if self.tls { "yes" } else { "no" }.to_owned()),
        ]
    }
}

impl PostgresServer {
    /// Starts a server for one test, which may kill it. It ends with this.
    pub async fn start_private() -> Option<PostgresServer> {
        PostgresServer::start(PostgresOptions::default()).await
    }

    /// Starts a server for one test, set up in another way.
    pub async fn start(options: PostgresOptions) -> Option<PostgresServer> {
        let Some(bin) = newest_bin() else {
            skipped("postgres", "not installed (apt-get install postgresql)");
            return None;
        };
        if options.tls && program("openssl").is_none() {
            skipped("postgres with TLS", "no openssl to make a certificate (apt-get install openssl)");
            return None;
        }
        let supervised = Arc::new(start("postgres", SCRIPT, 1, options.variables(&bin)).await);
        Some(PostgresServer { options, bin, databases: AtomicU64::new(0), supervised })
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.supervised.ports().first().copied().unwrap_or_default()
    }

    /// The password of its user.
    pub fn password(&self) -> &str {
        &self.options.password
    }

    /// The URL of the database `postgres`, password included.
    pub fn url(&self) -> String {
        self.url_of("postgres", self.port())
    }

    /// The URL of a database at another port, as a proxy's.
    pub fn url_of(&self, database: &str, port: u16) -> String {
        format!("postgres://stash:{}@127.0.0.1:{port}/{database}", self.options.password)
    }

    /// Makes an empty database that no other call was given, and returns its name, which begins with `label`.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn new_database_name(&self, label: &str) -> String {
        let name = format!("{label}_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.query("postgres", &format!("CREATE DATABASE \"{name}\"")).await;
        name
    }

    /// Makes an empty database that no other call was given, and returns its URL.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn new_database(&self, label: &str) -> String {
        self.url_of(&self.new_database_name(label).await, self.port())
    }

    /// What `psql` answers in a database: a line a row, the columns by `|`.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn query(&self, database: &str, sql: &str) -> String {
        match self.try_query(database, sql).await {
            Ok(answer) => answer,
            Err(why) => panic!("{sql}: {why}"),
        }
    }

    /// The same, but a refusal is the error's text.
    pub async fn try_query(&self, database: &str, sql: &str) -> Result<String, String> {
        self.try_query_at(self.port(), database, sql).await
    }

    /// The same through another port, as a proxy's.
    pub async fn try_query_at(&self, port: u16, database: &str, sql: &str) -> Result<String, String> {
        let mut psql = Command::new(self.bin.join("psql"));
        // No file of the user's, nothing asked.
        psql.args(["-X", "-w", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "stash"])
            .args(["-p", &port.to_string(), "-d", database, "-c", sql])
            .env("PGPASSWORD", &self.options.password)
            .env("PGCONNECT_TIMEOUT", "20");
        let output = blocking(move || psql.output()).await.map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// The certificate of the authority that its own is by, as a PEM file; `None` without TLS.
    pub fn authority(&self) -> Option<PathBuf> {
        self.options.tls.then(|| self.supervised.dir().join("authority.pem"))
    }

    /// SIGKILL to the server and all its children. When this returns they are gone.
    ///
    /// # Panics
    /// If it does not run.
    pub async fn kill(&self) {
        self.ask("kill").await;
    }

    /// Starts it again after [`PostgresServer::kill`], over what it had made durable, at the same port. When this returns it
    /// answers.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn restart(&self) {
        self.ask("start").await;
    }

    async fn ask(&self, command: &'static str) {
        let supervised = Arc::clone(&self.supervised);
        if let Err(why) = blocking(move || supervised.ask(command)).await {
            panic!("postgres did not {command}:\n{why}");
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

/// The newest installed version's programs: those of the distribution's folders, which are not on the search path, before it.
fn newest_bin() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let versions = versions
        .filter_map(|folder| Some((folder.file_name().to_str()?.parse::<u32>().ok()?, folder.path())));
    let newest = versions.filter(|(_, folder)| folder.join("bin/initdb").is_file()).max();
    newest.map(|(_, folder)| folder.join("bin")).or_else(|| {
        let initdb = fs::canonicalize(program("initdb")?).ok()?;
        initdb.parent().filter(|bin| bin.join("postgres").is_file()).map(Path::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::postgres;

    #[tokio::test]
    async fn databases_are_apart() {
        let Some(server) = postgres().await else { return };
        let (one, other) = (server.new_database_name("kit").await, server.new_database_name("kit").await);
        server.query(&one, "CREATE TABLE rows (n INT); INSERT INTO rows VALUES (7)").await;
        assert_eq!(server.query(&one, "SELECT n, n + 1 FROM rows").await, "7|8");
        server.try_query(&other, "SELECT n FROM rows").await.expect_err("no such table there");
    }

    #[tokio::test]
    async fn a_killed_server_has_what_was_committed_when_it_is_started_again() {
        let Some(server) = PostgresServer::start_private().await else { return };
        server.query("postgres", "CREATE TABLE rows (n INT); INSERT INTO rows VALUES (7)").await;
        for _ in 0..2 {
            server.kill().await;
            server.try_query("postgres", "SELECT 1").await.expect_err("it is gone");
            server.restart().await;
            assert_eq!(server.query("postgres", "SELECT n FROM rows").await, "7");
        }
    }

    #[test]
    fn a_server_whose_test_process_ends_before_it_is_ready_ends_too() {
        let Some(bin) = newest_bin() else { return };
        let variables = PostgresOptions::default().variables(&bin);
        let variables: Vec<(&str, &str)> =
            variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let dir = Supervised::abandon(SCRIPT, 1, &variables);
        assert!(!dir.exists(), "{}", dir.display());
    }

    #[tokio::test]
    async fn with_tls_its_certificate_is_by_its_authority() {
        let options = PostgresOptions { tls: true, ..PostgresOptions::default() };
        let Some(server) = PostgresServer::start(options).await else { return };
        let authority = server.authority().expect("it has one");
        let mut psql = Command::new(server.bin.join("psql"));
        let target = format!(
            "host=localhost port={} user=stash dbname=postgres sslmode=verify-full sslrootcert={}",
            server.port(),
            authority.display()
        );
        psql.args(["-X", "-w", "-A", "-t", "-c", "SELECT 1", "-d", &target])
            .env("PGPASSWORD", server.password());
        let output = blocking(move || psql.output()).await.expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
