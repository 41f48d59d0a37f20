//! What all four measure: rows, and the dataflow that puts them into a stash.
//!
//! A row is a u64 key, all different and in no order, and a text of 64 letters that follows from it.

use anyhow::{Result, bail};
use differential_dataflow::input::{Input, InputSession};
use stash::{Frontier, Launch, OpenOptions, Sink, SinkSpec, Stash};
use stash_benches::Numbers;
use stash_timely::{
    Background, Connected, Connection, Row as _, SinkConfig, SinkStatus, SinkToken, batch::arrange_keys,
    stash_sink,
};
use tempfile::TempDir;
use timely::{dataflow::operators::Probe, worker::Worker};
use tokio::runtime::{Builder, Runtime};

/// A row of the collection.
pub type Row = (u64, String);

/// Bytes of a row as the stash counts them: key, text, time and diff.
pub const ROW_BYTES: u64 = 8 + 64 + 8 + 8;

/// Bytes of a row in an arrangement's batch: the key and the text's place, its letters as they are allocated, an offset,
/// a time and a diff.
pub const HELD_ROW_BYTES: u64 = 32 + 80 + 8 + 8 + 8;

/// Rows between two steps of a worker that is fed.
const ROWS_A_STEP: u64 = 4096;

/// The row of a number.
pub fn row(number: u64) -> Row {
    // Odd, so that no two numbers have the same key.
    let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut numbers = Numbers::new(key);
    let mut text = String::with_capacity(64);
    for _ in 0..8 {
        let letters = numbers.draw();
        text.extend((0..8).map(|place| char::from(b'a' + ((letters >> (place * 8)) & 15) as u8)));
    }
    (key, text)
}

/// A stash in a folder of its own, which goes with this, and a runtime for it beside the workers.
pub struct World {
    pub runtime: Runtime,
    pub stash: Stash,
    _folder: TempDir,
}

impl World {
    pub fn open() -> Result<World> {
        let folder = tempfile::tempdir()?;
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let stash =
            runtime.block_on(OpenOptions::new(format!("file://{}", folder.path().display())).open())?;
        Ok(World { runtime, stash, _folder: folder })
    }

    pub fn sink(&self, name: &str) -> Result<Sink> {
        Ok(self.runtime.block_on(self.stash.declare_sink(SinkSpec::new(name, Row::schema()?)?))?)
    }

    pub fn connect(&self, sink: &Sink, workers: u32) -> Result<Connection> {
        let background = Background::new(self.runtime.handle().clone(), workers as usize);
        let launch = Launch::single("replica", workers)?;
        let opened = Connection::open(sink, launch, &background, SinkConfig::default());
        match self.runtime.block_on(opened)? {
            Connected::Render(connection) => Ok(connection),
            other => bail!("nothing to render: {other:?}"),
        }
    }

    /// Waits until the rendering has ended, and closes the stash.
    pub fn close(self, connection: &Connection) -> Result<()> {
        self.runtime.block_on(connection.idle());
        self.runtime.block_on(self.stash.close())?;
        Ok(())
    }
}

/// An input of rows, and the sink they go to.
pub struct Rendered {
    pub rows: InputSession<u64, Row, i64>,
    pub token: SinkToken,
}

impl Rendered {
    pub fn new(worker: &mut Worker, connection: &Connection) -> Result<Rendered> {
        worker.dataflow(|scope| {
            let (rows, collection) = scope.new_collection::<Row, i64>();
            let (_, errors) = scope.new_collection::<String, i64>();
            Ok(Rendered { rows, token: stash_sink(collection, errors, connection)? })
        })
    }

    /// Whether the sink has the batch of the snapshot.
    pub fn is_sealed(&self) -> bool {
        let held = self.token.held();
        held.updates > 0 || held.scanning > 0
    }

    /// Whether the chain has everything below `time`.
    pub fn is_accepted(&self, time: u64) -> Result<bool> {
        match self.token.status() {
            SinkStatus::Running => Ok(self.token.upper() >= Frontier::at(time)),
            SinkStatus::Stopped(stop) => bail!("the sink stopped: {stop:?}"),
        }
    }

    /// Ends the input, and waits for the sink to stop.
    pub fn end(self, worker: &mut Worker) {
        self.rows.close();
        while self.token.status() == SinkStatus::Running {
            worker.step_or_park(Some(PARK));
        }
        self.token.detach();
    }
}

/// How long a worker that has nothing to do parks at most.
pub const PARK: std::time::Duration = std::time::Duration::from_millis(1);

/// The same dataflow without a sink: its batches are made, and dropped.
pub fn without_sink(
    worker: &mut Worker,
) -> (InputSession<u64, Row, i64>, timely::dataflow::ProbeHandle<u64>) {
    worker.dataflow(|scope| {
        let (rows, collection) = scope.new_collection::<Row, i64>();
        let (probe, _) = arrange_keys(collection).stream.probe();
        (rows, probe)
    })
}

/// Feeds the rows of these numbers at time 0, and steps the worker meanwhile.
pub fn feed(worker: &mut Worker, rows: &mut InputSession<u64, Row, i64>, numbers: impl Iterator<Item = u64>) {
    for (n, number) in (1..).zip(numbers) {
        rows.update(row(number), 1);
        if n % ROWS_A_STEP == 0 {
            worker.step();
        }
    }
}
