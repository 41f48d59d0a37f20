//! The catalog over a real PostgreSQL: the whole suite, and what only a server far away can do wrong.
//!
//! Each test has a schema of its own on the server of this process; where none is installed the tests are reported as
//! skipped, and fail where servers are required.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod interleavings;
mod losses;
mod opening;
mod proxy;
mod schema;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::{Connection, PgConnection, Row};
use stash_catalog::suite::{Setup, World, span};
use stash_catalog::testing::{ManualClock, SeededIds};
use stash_catalog::{Catalog, CatalogError, ClockSource, PostgresCatalog, PostgresOptions};
use stash_testkit::servers::{PostgresServer, postgres};

/// A schema that no other test has.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) server: &'static PostgresServer,
    pub(crate) schema: String,
    pub(crate) clock: Arc<ManualClock>,
}

/// A fresh schema on the server of this process; `None` where there is no server, which is reported.
pub(crate) async fn fresh() -> Option<Place> {
    static SCHEMAS: AtomicU64 = AtomicU64::new(0);
    let server = postgres().await?;
    let schema = format!("s_{}", SCHEMAS.fetch_add(1, Ordering::Relaxed));
    Some(Place { server, schema, clock: Arc::new(ManualClock::at(1_000_000)) })
}

impl Place {
    pub(crate) fn url(&self) -> String {
        self.url_at(self.server.port())
    }

    pub(crate) fn url_at(&self, port: u16) -> String {
        format!("{}?schema={}", self.server.url_of("postgres", port), self.schema)
    }

    pub(crate) fn options(&self) -> PostgresOptions {
        PostgresOptions::from_url(&self.url()).expect("a URL")
    }

    pub(crate) async fn try_open(
        &self,
        options: PostgresOptions,
        seed: u64,
    ) -> Result<PostgresCatalog, CatalogError> {
        let clock = ClockSource::Given(Arc::clone(&self.clock) as Arc<dyn stash_types::Clock>);
        PostgresCatalog::open(options, clock, Arc::new(SeededIds::new(seed))).await
    }

    pub(crate) async fn open(&self, seed: u64) -> PostgresCatalog {
        self.try_open(self.options(), seed).await.expect("opened")
    }

    /// Two handles on it.
    pub(crate) async fn setup(&self) -> Setup {
        let (catalog, other) = (self.open(1).await, self.open(2).await);
        self.setup_of(catalog, other)
    }

    pub(crate) fn setup_of(&self, catalog: PostgresCatalog, other: PostgresCatalog) -> Setup {
        let (clock, ids) = (Arc::clone(&self.clock), Arc::new(SeededIds::new(3)));
        Setup { catalog: Arc::new(catalog), other: Arc::new(other), clock, ids }
    }

    /// A bare connection, in the schema.
    pub(crate) async fn bare(&self) -> PgConnection {
        let mut bare = PgConnection::connect(&self.server.url()).await.expect("connected");
        execute(&mut bare, &format!("SET search_path = {}", self.schema)).await;
        bare
    }
}

pub(crate) async fn execute(bare: &mut PgConnection, sql: &str) {
    let ran = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(bare).await;
    ran.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

pub(crate) async fn number(bare: &mut PgConnection, sql: &str) -> i64 {
    let row = sqlx::query(sqlx::AssertSqlSafe(sql.to_owned())).fetch_one(bare).await;
    row.and_then(|row| row.try_get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

async fn setup() -> Option<(Setup, ())> {
    Some((fresh().await?.setup().await, ()))
}

mod suite {
    stash_catalog::catalog_suite!(super::setup);
}

/// A catalog of one sink with one batch of one part.
pub(crate) async fn written(place: &Place) -> World {
    let setup = place.setup().await;
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    world.accept(a, span(0, 5), &[1]).await;
    world
}

/// The other handle as the first one.
pub(crate) fn other(world: &World) -> Arc<dyn Catalog> {
    Arc::clone(&world.setup.other)
}
