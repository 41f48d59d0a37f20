//! Where a shared catalog is and how sessions are set up, read from a URL. Pure: nothing is asked of the network.
//!
//! `postgres://user:password@host:port/database?schema=…&sslmode=…`. What is not said: port 5432, the database
//! named like the user, schema `stash`. A parameter that is not known is refused by name, and so is one given twice.
//!
//! | parameter | means |
//! |---|---|
//! | `schema` | the schema of the catalog: letters, digits and underscores, lower case, 40 at most |
//! | `sslmode` | `disable`, `allow`, `prefer`, `require`, `verify-ca`, `verify-full` |
//! | `sslrootcert` | a PEM file of the authorities to trust, instead of the public ones |
//! | `sslcert`, `sslkey` | the client's certificate and its key, PEM files |
//! | `allow_insecure` | `true` allows an `sslmode` below `verify-full` on a network |
//! | `application_name` | how the server's views call the sessions; `stash` |
//! | `host` | the folder of a Unix socket, for a URL without a host |
//!
//! **TLS.** On a network the server must prove by its certificate that it is the host that was named: `verify-full`. A weaker
//! mode lets whoever is in between read the password and change what is committed; it is refused unless the URL says
//! `allow_insecure=true`. The loopback and Unix sockets are no network; there the default is `prefer`.
//!
//! **Secrets.** The password stands nowhere but in what is sent to the server: `Debug` and the catalog's location leave it
//! out, and an error never repeats the URL.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection as _, PgPool};
use url::{Host, Url};

use crate::sql::Result;
use crate::{CatalogError, Misuse};

/// The longest name of a schema: what is derived from it fits the server's names.
const SCHEMA_LEN_MAX: usize = 40;
/// A connection that was idle for longer is tried before it is used: the server may have gone away meanwhile.
const TRUSTED: Duration = Duration::from_secs(1);

/// How to reach a catalog in PostgreSQL, and how its sessions are set up.
#[derive(Clone)]
pub struct PostgresOptions {
    host: Place,
    port: u16,
    user: String,
    password: Option<String>,
    database: String,
    pub(super) schema: String,
    ssl_mode: PgSslMode,
    ssl_root_cert: Option<PathBuf>,
    ssl_cert: Option<PathBuf>,
    ssl_key: Option<PathBuf>,
    application_name: String,
    /// How long to wait for a connection: to be made, or to be free. Default: 10 s.
    pub connect_timeout: Duration,
    /// How long a statement may run. Default: 60 s, far above what any takes, so that a session that hangs ends.
    pub statement_timeout: Duration,
    /// How long to wait for a row that another session holds. Default: 20 s, above what a transaction takes whose process
    /// was stopped for a moment, below what the statement timeout would end without a reason.
    pub lock_timeout: Duration,
    /// After what time the server ends a transaction whose process says nothing: a stopped process must not hold
    /// a head row for ever. Default: 15 s, below the lock timeout, so that who waits gets the row.
    pub idle_in_transaction_timeout: Duration,
    /// How often who waits looks, should nothing wake it. Default: 1 s; what is told wakes within a millisecond or so.
    pub poll_interval: Duration,
    /// How many connections this handle has at most, the one that listens aside. Default: 8. Each process has as many; their
    /// sum must fit the server's `max_connections`.
    pub connections_max: u32,
}

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// A name or an address.
    Host(String),
    /// The folder of a Unix socket.
    Socket(PathBuf),
}

impl Place {
    /// Whether the way there leaves this machine.
    fn is_network(&self) -> bool {
        match self {
            Place::Socket(_) => false,
            Place::Host(host) => match host.parse::<IpAddr>() {
                Ok(address) => !address.is_loopback(),
                Err(_) => host != "localhost" && !host.ends_with(".localhost"),
            },
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Host(host) if host.contains(':') => write!(f, "[{host}]"),
            Place::Host(host) => f.write_str(host),
            Place::Socket(folder) => write!(f, "{}", folder.display()),
        }
    }
}

fn refuse<T>(what: impl fmt::Display) -> Result<T> {
    // SUBTLE: the URL itself is not repeated: it may hold a password, and where depends on what is wrong with it.
    Err(Misuse::Inconsistent { what: format!("the URL of the catalog: {what}") }.into())
}

/// Percent-decodes a piece of a URL.
fn decoded(piece: &str, name: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(piece.len());
    let mut rest = piece.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits: Option<String> = rest
            .by_ref()
            .take(2)
            .map(|byte| char::from(byte).to_digit(16))
            .try_fold(String::new(), |mut digits, digit| {
                digits.push(char::from_digit(digit?, 16)?);
                Some(digits)
            });
        match digits.filter(|digits| digits.len() == 2).map(|digits| u8::from_str_radix(&digits, 16)) {
            Some(Ok(byte)) => bytes.push(byte),
            _ => return refuse(format!("the {name} has a percent sign without two hex digits")),
        }
    }
    String::from_utf8(bytes).or_else(|_| refuse(format!("the {name} is not UTF-8")))
}

/// The parameters of a URL, each taken once.
struct Parameters(BTreeMap<String, String>);

impl Parameters {
    fn of(url: &Url) -> Result<Parameters> {
        let mut parameters = BTreeMap::new();
        for (name, value) in url.query_pairs() {
            if parameters.insert(name.to_string(), value.to_string()).is_some() {
                return refuse(format!("parameter {name} is given twice"));
            }
        }
        Ok(Parameters(parameters))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn none_left(self) -> Result<()> {
        match self.0.into_keys().next() {
            Some(name) => refuse(format!("parameter {name} is unknown")),
            None => Ok(()),
        }
    }
}

/// The mode of TLS to a place: what was asked for, where that is safe enough there.
fn ssl_mode(place: &Place, asked: Option<&str>, allow_insecure: bool) -> Result<PgSslMode> {
    let Some(asked) = asked else {
        return Ok(if place.is_network() { PgSslMode::VerifyFull } else { PgSslMode::Prefer });
    };
    let Ok(mode) = PgSslMode::from_str(asked) else {
        return refuse("sslmode is one of disable, allow, prefer, require, verify-ca, verify-full");
    };
    match mode {
        PgSslMode::VerifyFull => Ok(mode),
        _ if !place.is_network() || allow_insecure => Ok(mode),
        _ => refuse(format!(
            "sslmode={asked} does not prove that the server is {place}: whoever is in between could read the password and \
             change what is committed; leave sslmode out (verify-full), or say allow_insecure=true"
        )),
    }
}

fn check_schema(schema: &str) -> Result<()> {
    let begins = schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    let fits = schema.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    match begins && fits && schema.len() <= SCHEMA_LEN_MAX && !schema.starts_with("pg_") {
        true => Ok(()),
        false => refuse(format!(
            "schema {schema:?}: lower-case letters, digits and underscores, {SCHEMA_LEN_MAX} at most, no pg_ before them"
        )),
    }
}

impl PostgresOptions {
    /// Reads the URL of a catalog.
    pub fn from_url(text: &str) -> Result<PostgresOptions> {
        let Ok(url) = Url::parse(text) else {
            return refuse("it is none: postgres://user:password@host:port/database?schema=…");
        };
        if !matches!(url.scheme(), "postgres" | "postgresql") {
            return refuse(format!("scheme {:?} is not postgres", url.scheme()));
        }
        if url.fragment().is_some() {
            return refuse("it has a fragment: write a # in the password as %23");
        }
        let mut parameters = Parameters::of(&url)?;
        let host = match (url.host(), parameters.take("host")) {
            (Some(_), Some(_)) => return refuse("it names two hosts"),
            (Some(Host::Ipv6(address)), None) => Place::Host(address.to_string()),
            (Some(host), None) => Place::of(&decoded(&host.to_string(), "host")?),
            (None, Some(host)) => Place::of(&host),
            (None, None) => {
                return refuse("it names no host: a name, an address, or ?host= the folder of a Unix socket");
            }
        };
        let user = decoded(url.username(), "user")?;
        if user.is_empty() {
            return refuse("it names no user");
        }
        let password = url.password().map(|password| decoded(password, "password")).transpose()?;
        let database = match decoded(url.path().trim_start_matches('/'), "database")? {
            name if name.is_empty() => user.clone(),
            name => name,
        };
        let schema = parameters.take("schema").unwrap_or_else(|| "stash".to_owned());
        check_schema(&schema)?;
        let allow_insecure = match parameters.take("allow_insecure").as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return refuse("allow_insecure is true or false"),
        };
        let options = PostgresOptions {
            ssl_mode: ssl_mode(&host, parameters.take("sslmode").as_deref(), allow_insecure)?,
            host,
            port: url.port().unwrap_or(5432),
            user,
            password,
            database,
            schema,
            ssl_root_cert: parameters.take("sslrootcert").map(PathBuf::from),
            ssl_cert: parameters.take("sslcert").map(PathBuf::from),
            ssl_key: parameters.take("sslkey").map(PathBuf::from),
            application_name: parameters.take("application_name").unwrap_or_else(|| "stash".to_owned()),
            connect_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(60),
            lock_timeout: Duration::from_secs(20),
            idle_in_transaction_timeout: Duration::from_secs(15),
            poll_interval: Duration::from_secs(1),
            connections_max: 8,
        };
        parameters.none_left()?;
        Ok(options)
    }

    /// Where the catalog is, for people: neither user nor password.
    pub fn location(&self) -> String {
        let PostgresOptions { host, port, database, schema, .. } = self;
        format!("postgres://{host}:{port}/{database}?schema={schema}")
    }

    /// How one session is opened and set up.
    pub(super) fn connect_options(&self) -> PgConnectOptions {
        let millis = |duration: Duration| format!("{}ms", duration.as_millis().max(1));
        let mut options = PgConnectOptions::new_without_pgpass()
            .port(self.port)
            .username(&self.user)
            .database(&self.database)
            .ssl_mode(self.ssl_mode)
            .application_name(&self.application_name)
            .options([
                ("search_path", self.schema.clone()),
                ("synchronous_commit", "on".to_owned()),
                ("default_transaction_isolation", "read committed".to_owned()),
                ("statement_timeout", millis(self.statement_timeout)),
                ("lock_timeout", millis(self.lock_timeout)),
                ("idle_in_transaction_session_timeout", millis(self.idle_in_transaction_timeout)),
                // Every statement finds its rows by a key: planning it once is planning it right.
                ("plan_cache_mode", "force_generic_plan".to_owned()),
            ]);
        options = match &self.host {
            Place::Host(host) => options.host(host),
            Place::Socket(folder) => options.socket(folder),
        };
        if let Some(password) = &self.password {
            options = options.password(password);
        }
        if let Some(file) = &self.ssl_root_cert {
            options = options.ssl_root_cert(file);
        }
        if let Some(file) = &self.ssl_cert {
            options = options.ssl_client_cert(file);
        }
        if let Some(file) = &self.ssl_key {
            options = options.ssl_client_key(file);
        }
        options.disable_statement_logging()
    }

    /// The connections of a handle; none is made before it is needed.
    pub(super) fn pool(&self) -> PgPool {
        PgPoolOptions::new()
            .max_connections(self.connections_max.max(1))
            .acquire_timeout(self.connect_timeout)
            .test_before_acquire(false)
            .before_acquire(|connection, meta| {
                Box::pin(async move {
                    if meta.idle_for > TRUSTED {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(self.connect_options())
    }

    /// The one connection that listens.
    pub(super) fn pool_of_one(&self) -> PgPool {
        PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(self.connect_timeout)
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_lazy_with(self.connect_options())
    }
}

impl Place {
    fn of(host: &str) -> Place {
        match host.starts_with('/') {
            true => Place::Socket(PathBuf::from(host)),
            false => Place::Host(host.to_owned()),
        }
    }
}

impl FromStr for PostgresOptions {
    type Err = CatalogError;
    fn from_str(text: &str) -> Result<PostgresOptions> {
        PostgresOptions::from_url(text)
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("location", &self.location())
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("ssl_mode", &self.ssl_mode)
            .field("connections_max", &self.connections_max)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "canary-4711";

    fn read(url: &str) -> PostgresOptions {
        PostgresOptions::from_url(url).expect(url)
    }

    fn refusal(url: &str) -> String {
        let refused = PostgresOptions::from_url(url).map(drop).expect_err(url);
        assert!(matches!(refused, CatalogError::InvalidUsage(_)), "{refused:?}");
        assert!(!format!("{refused:?} {refused}").contains(CANARY), "{refused:?}");
        refused.to_string()
    }

    #[test]
    fn a_url_says_where_and_what_it_leaves_out_has_a_default() {
        let options = read("postgres://me@db.example/books");
        assert_eq!((options.port, options.schema.as_str()), (5432, "stash"));
        assert_eq!(options.location(), "postgres://db.example:5432/books?schema=stash");
        let options = read("postgresql://me:p%40ss%2Fword@127.0.0.1:5545/?schema=a_1&application_name=x");
        assert_eq!((options.password.as_deref(), options.database.as_str()), (Some("p@ss/word"), "me"));
        assert_eq!((options.port, options.schema.as_str()), (5545, "a_1"));
        let options = read("postgres://me@[::1]/books");
        assert_eq!(options.location(), "postgres://[::1]:5432/books?schema=stash");
        let options = read("postgres://me@%2Fvar%2Frun/books");
        assert_eq!(options.host, Place::Socket("/var/run".into()));
    }

    #[test]
    fn on_a_network_the_server_proves_who_it_is_unless_told_that_it_need_not() {
        for host in ["db.example", "10.0.0.1", "192.168.1.2", "[2001:db8::1]", "localhost.example", "0.0.0.0"]
        {
            assert!(
                matches!(read(&format!("postgres://me@{host}/d")).ssl_mode, PgSslMode::VerifyFull),
                "{host}"
            );
            for mode in ["disable", "allow", "prefer", "require", "verify-ca"] {
                let url = format!("postgres://me:{CANARY}@{host}/d?sslmode={mode}");
                assert!(refusal(&url).contains("allow_insecure"), "{url}");
                assert!(refusal(&format!("{url}&allow_insecure=false")).contains("allow_insecure"));
                let allowed = read(&format!("{url}&allow_insecure=true")).ssl_mode;
                assert!(!matches!(allowed, PgSslMode::VerifyFull), "{url}");
            }
            let url = format!("postgres://me@{host}/d?allow_insecure=true");
            assert!(matches!(read(&url).ssl_mode, PgSslMode::VerifyFull), "allowed, and not asked for");
        }
    }

    #[test]
    fn the_loopback_and_a_socket_are_no_network() {
        for host in ["localhost", "a.localhost", "127.0.0.1", "127.8.8.8", "[::1]", "%2Frun%2Fpg"] {
            assert!(matches!(read(&format!("postgres://me@{host}/d")).ssl_mode, PgSslMode::Prefer), "{host}");
            let url = format!("postgres://me@{host}/d?sslmode=disable");
            assert!(matches!(read(&url).ssl_mode, PgSslMode::Disable), "{host}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name_without_the_password() {
        for (rest, named) in [
            ("h/d?sslmod=require", "sslmod"),
            ("h/d?schema=a&schema=b", "schema"),
            ("h/d?schema=Big", "Big"),
            ("h/d?schema=pg_mine", "pg_mine"),
            ("h/d?schema=a\"b", "schema"),
            ("h/d?sslmode=maybe", "sslmode"),
            ("h/d?allow_insecure=1", "allow_insecure"),
            ("h/d?host=/run", "two hosts"),
            ("h/d#x", "fragment"),
            ("h/%zz", "database"),
        ] {
            let why = refusal(&format!("postgres://me:{CANARY}@{rest}"));
            assert!(why.contains(named), "{rest}: {why}");
        }
        for url in [
            format!("mysql://me:{CANARY}@h/d"),
            format!("postgres://me:{CANARY}@h:port/d"),
            format!("postgres://:{CANARY}@h/d"),
            format!("postgres:///d?password={CANARY}"),
        ] {
            refusal(&url);
        }
    }

    #[test]
    fn a_server_before_version_13_is_refused_by_name() {
        let refused =
            super::super::migrate::refuse_version("here", 120_017).map_err(|error| error.to_string());
        let why = refused.expect_err("too old");
        assert!(why.contains("PostgreSQL 12") && why.contains("13"), "{why}");
        super::super::migrate::refuse_version("here", 130_000).expect("new enough");
    }

    #[test]
    fn the_password_is_in_nothing_that_is_printed() {
        let options = read(&format!("postgres://me:{CANARY}@db.example/books"));
        let printed = format!("{options:?} {options:#?} {}", options.location());
        assert!(printed.contains("***") && !printed.contains(CANARY), "{printed}");
    }
}
