//! What the tests of single operators begin with.

use stash::{Launch, SinkSpec, Stash};

use crate::{Background, Connected, Connection, Row, SinkConfig};

/// A sink of numbers in memory, connected for one process of two workers.
pub(super) fn two_workers() -> (tokio::runtime::Runtime, Connection) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let stash = runtime.block_on(Stash::open("memory://")).expect("a stash");
    let spec = SinkSpec::new("numbers", u64::schema().expect("columns")).expect("a spec");
    let sink = runtime.block_on(stash.declare_sink(spec)).expect("a sink");
    let background = Background::new(runtime.handle().clone(), 2);
    let launch = Launch::single("replica", 2).expect("a launch");
    let opened = runtime.block_on(Connection::open(&sink, launch, &background, SinkConfig::default()));
    let Connected::Render(connection) = opened.expect("opened") else { panic!("it is not complete") };
    (runtime, connection)
}
