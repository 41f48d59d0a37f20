//! Both databases have one schema: tables, columns, what may be null, keys and indexes, as the databases tell it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row, SqliteConnection};
use stash_catalog::testing::{ManualClock, SeededIds};
use stash_catalog::{Catalog, SqliteCatalog};

use crate::fresh;

/// A column: its name, what it holds, whether it may be null.
type Column = (String, &'static str, bool);

/// A table as a database tells it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Table {
    columns: Vec<Column>,
    /// The columns of the primary key, in order.
    key: Vec<String>,
    /// Other indexes: whether unique, whether of some rows only, their columns in order.
    indexes: BTreeSet<(bool, bool, Vec<String>)>,
    /// Columns, and the table and columns they refer to.
    references: BTreeSet<(Vec<String>, String, Vec<String>)>,
}

type Schema = BTreeMap<String, Table>;

fn holds(kind: &str) -> &'static str {
    match kind.to_lowercase().as_str() {
        "integer" | "bigint" => "an integer",
        "text" => "text",
        "blob" | "bytea" => "bytes",
        other => panic!("a column of type {other}"),
    }
}

async fn of_sqlite(connection: &mut SqliteConnection) -> Schema {
    let mut schema = Schema::new();
    let rows = async |connection: &mut SqliteConnection, sql: String| {
        sqlx::query(AssertSqlSafe(sql)).fetch_all(connection).await.expect("read")
    };
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'
                  AND name <> '_sqlx_migrations'";
    for row in rows(connection, tables.to_owned()).await {
        let name: String = row.get(0);
        let mut table = Table::default();
        let mut key = BTreeMap::new();
        let pragma =
            format!("SELECT name, type, \"notnull\", pk FROM pragma_table_info('{name}') ORDER BY cid");
        for row in rows(connection, pragma).await {
            let column: String = row.get(0);
            let (kind, not_null, place): (String, i64, i64) = (row.get(1), row.get(2), row.get(3));
            table.columns.push((column.clone(), holds(&kind), not_null == 0));
            if place > 0 {
                key.insert(place, column);
            }
        }
        table.key = key.into_values().collect();
        let list = format!("SELECT name, \"unique\", origin, partial FROM pragma_index_list('{name}')");
        for row in rows(connection, list).await {
            let (index, unique): (String, i64) = (row.get(0), row.get(1));
            let (origin, partial): (String, i64) = (row.get(2), row.get(3));
            if origin != "pk" {
                let info = format!("SELECT name FROM pragma_index_info('{index}') ORDER BY seqno");
                let columns = rows(connection, info).await.iter().map(|row| row.get(0)).collect();
                table.indexes.insert((unique == 1, partial == 1, columns));
            }
        }
        let mut references: BTreeMap<i64, (Vec<String>, String, Vec<String>)> = BTreeMap::new();
        let list = format!(
            "SELECT id, \"from\", \"table\", \"to\" FROM pragma_foreign_key_list('{name}') ORDER BY id, seq"
        );
        for row in rows(connection, list).await {
            let entry = references.entry(row.get(0)).or_default();
            entry.0.push(row.get(1));
            entry.1 = row.get(2);
            entry.2.push(row.get(3));
        }
        table.references = references.into_values().collect();
        schema.insert(name, table);
    }
    schema
}

async fn of_postgres(connection: &mut PgConnection) -> Schema {
    let mut schema = Schema::new();
    let rows = async |connection: &mut PgConnection, sql: &'static str| {
        sqlx::query(sql).fetch_all(connection).await.expect("read")
    };
    let columns = "SELECT table_name::text, column_name::text, data_type::text, is_nullable::text
                   FROM information_schema.columns WHERE table_schema = current_schema()
                   AND table_name <> '_sqlx_migrations' ORDER BY table_name, ordinal_position";
    for row in rows(connection, columns).await {
        let (table, column): (String, String) = (row.get(0), row.get(1));
        let (kind, nullable): (String, String) = (row.get(2), row.get(3));
        schema.entry(table).or_default().columns.push((column, holds(&kind), nullable == "YES"));
    }
    let indexes = "SELECT t.relname::text, i.indisprimary, i.indisunique, i.indpred IS NOT NULL,
                       ARRAY(SELECT a.attname::text FROM unnest(i.indkey) WITH ORDINALITY AS k (n, place)
                             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n ORDER BY k.place)
                   FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace
                   WHERE n.nspname = current_schema() AND t.relname <> '_sqlx_migrations'";
    for row in rows(connection, indexes).await {
        let table: String = row.get(0);
        let table = schema.get_mut(&table).expect("a table");
        let columns: Vec<String> = row.get(4);
        match row.get(1) {
            true => table.key = columns,
            false => {
                table.indexes.insert((row.get(2), row.get(3), columns));
            }
        }
    }
    let references = "SELECT t.relname::text, f.relname::text,
                          ARRAY(SELECT a.attname::text FROM unnest(c.conkey) WITH ORDINALITY AS k (n, place)
                                JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.n ORDER BY k.place),
                          ARRAY(SELECT a.attname::text FROM unnest(c.confkey) WITH ORDINALITY AS k (n, place)
                                JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.n ORDER BY k.place)
                      FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid JOIN pg_class f ON f.oid = c.confrelid
                      JOIN pg_namespace n ON n.oid = t.relnamespace
                      WHERE c.contype = 'f' AND n.nspname = current_schema()";
    for row in rows(connection, references).await {
        let table: String = row.get(0);
        let reference = (row.get(2), row.get(1), row.get(3));
        schema.get_mut(&table).expect("a table").references.insert(reference);
    }
    schema
}

#[tokio::test]
async fn both_databases_have_one_schema() {
    let Some(place) = fresh().await else { return };
    place.open(1).await.close().await;
    let of_postgres = of_postgres(&mut place.bare().await).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("catalog.db");
    let catalog = SqliteCatalog::open(&path, Arc::new(ManualClock::at(0)), Arc::new(SeededIds::new(1))).await;
    catalog.expect("opened").close().await;
    let mut connection = SqliteConnectOptions::new().filename(&path).connect().await.expect("connected");
    let of_sqlite = of_sqlite(&mut connection).await;
    assert_eq!(of_sqlite.keys().collect::<Vec<_>>(), of_postgres.keys().collect::<Vec<_>>());
    assert_eq!(of_sqlite.len(), 10, "tables: {:?}", of_sqlite.keys());
    for (name, table) in &of_sqlite {
        assert_eq!(*table, of_postgres[name], "table {name}");
    }
}
