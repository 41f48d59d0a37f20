//! The changefeed of the demo: the TPC-H tables `orders` and `lineitem`, changed by the benchmark's refresh functions.
//!
//! The snapshot, at time 0, is the benchmark's data at a scale (comments are cut from a smaller text). Then come the
//! *ticks* 1 to T: RF1 inserts new orders with their lines, RF2 deletes orders with theirs, and in
//! between orders are shipped, which changes the status of lines and orders. Most ticks are a
//! trickle; every n-th is a whole refresh set, scale × 1500 orders in and as many out. The
//! `schedule` module says which order changes when.
//!
//! - A retraction is the exact row that was inserted last; multiplicities are 0 or 1 at every time.
//! - New orders take keys from the gaps which the benchmark leaves (8 of every 32 are used), spread over the whole
//!   range, and their content from the generator's continuation beyond the snapshot's last order.
//! - Everything after the snapshot depends on the seed: which orders go or change, and what comes. The snapshot
//!   itself is the benchmark's, and the same for all seeds; only its order within an answer is not.
//! - Nothing is remembered between answers: a range of ticks costs what it holds, and memory is one batch per answer.

mod rows;
mod schedule;

use arrow::array::RecordBatch;
use tpchgen::generators::{LineItem, LineItemGeneratorIterator, OrderGenerator, OrderGeneratorIterator};

use self::{
    rows::{LineBatch, OrderBatch, Source, Stamp},
    schedule::{Order, Schedule, Stage},
};
use super::feed::{self, BATCH_ROWS, Feed, Table, Updates};

/// Orders dealt to one worker at a time from the snapshot.
const BLOCK_ORDERS: u64 = 1024;

/// The smallest scale: 1500 orders.
pub const SCALE_MIN: f64 = 0.001;

/// The largest scale: 150 million orders.
pub const SCALE_MAX: f64 = 100.0;

/// The largest `refresh_every` and `trickle_orders`; larger ones would not be a demo, and overflow sums.
const KNOB_MAX: u64 = 100_000;

/// The benchmark's orders in a refresh set, per scale.
const REFRESH_ORDERS: f64 = 1500.0;

/// The number of new orders' contents that seeds choose a start among.
const SEED_OFFSETS: u64 = 1 << 20;

/// What a feed is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TpchSpec {
    /// The benchmark's scale factor: 1 is 1.5 million orders and 6 million lines.
    pub scale: f64,
    /// Chooses everything after the snapshot.
    pub seed: u64,
    /// The ticks after the snapshot.
    pub ticks: u64,
    /// Every how many ticks a whole refresh set comes.
    pub refresh_every: u64,
    /// Orders inserted, deleted and changed by the other ticks.
    pub trickle_orders: u64,
}

impl Default for TpchSpec {
    /// Scale 0.1, 200 ticks, a refresh set every 25, 2 orders in a trickle: about fifty rows a tick, which travel inline.
    fn default() -> TpchSpec {
        TpchSpec { scale: 0.1, seed: 1, ticks: 200, refresh_every: 25, trickle_orders: 2 }
    }
}

/// Why a specification is no feed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TpchError {
    /// The scale is out of range.
    #[error("scale {scale} is not between {SCALE_MIN} and {SCALE_MAX}: choose one that is")]
    Scale {
        /// The scale asked for.
        scale: f64,
    },
    /// A count is out of range.
    #[error("{knob} is {value}: choose 1 to {KNOB_MAX}")]
    Count {
        /// Its name.
        knob: &'static str,
        /// The count asked for.
        value: u64,
    },
    /// The ticks insert more orders than the generator can make.
    #[error("{ticks} ticks at scale {scale} insert more orders than the generator has: choose fewer ticks")]
    TooMany {
        /// The ticks asked for.
        ticks: u64,
        /// The scale asked for.
        scale: f64,
    },
}

/// A seeded permutation of `0..len`: a multiplication and a shift modulo `len`.
#[derive(Clone, Copy, Debug)]
struct Permutation {
    len: u64,
    factor: u64,
    shift: u64,
}

/// A number without pattern, from a number: the finalizer of the SplitMix64 generator.
fn scramble(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Permutation {
    /// A permutation of `0..len`, `len` at least 1, chosen by `seed`.
    fn new(len: u64, seed: u64) -> Permutation {
        let mut factor = scramble(seed) % len;
        while gcd(factor, len) != 1 {
            factor += 1;
        }
        Permutation { len, factor, shift: scramble(seed ^ 0x5EED) % len }
    }

    fn of(&self, index: u64) -> u64 {
        let wide = u128::from(self.factor) * u128::from(index) + u128::from(self.shift);
        // The remainder is below `len`, a u64.
        (wide % u128::from(self.len)) as u64
    }
}

/// TPC-H orders and lines as a changefeed. See the module.
#[derive(Clone, Copy, Debug)]
pub struct TpchFeed {
    spec: TpchSpec,
    source: Source,
    schedule: Schedule,
    /// Positions of base orders to their ordinals, from 0.
    base: Permutation,
    /// New orders to the places of their keys.
    keys: Permutation,
    /// Blocks of the snapshot, in the order in which they are dealt.
    blocks: Permutation,
    /// The ordinal, from 1, of the first new order's content.
    new_first: u64,
}

impl TpchFeed {
    /// The feed of `spec`.
    pub fn new(spec: TpchSpec) -> Result<TpchFeed, TpchError> {
        let TpchSpec { scale, seed, ticks, refresh_every, trickle_orders } = spec;
        if !(SCALE_MIN..=SCALE_MAX).contains(&scale) {
            return Err(TpchError::Scale { scale });
        }
        for (knob, value) in [("refresh_every", refresh_every), ("trickle_orders", trickle_orders)] {
            if !(1..=KNOB_MAX).contains(&value) {
                return Err(TpchError::Count { knob, value });
            }
        }
        // Both are positive and far below 2^53, by the range of the scale.
        let orders = OrderGenerator::calculate_row_count(scale, 1, 1) as u64;
        let refresh = (scale * REFRESH_ORDERS).round().max(1.0) as u64;
        let schedule = Schedule { base: orders, refresh, every: refresh_every, trickle: trickle_orders };
        let new_first = orders + 1 + scramble(seed ^ 0xC0DE) % SEED_OFFSETS;
        // Ordinals are the generator's part numbers.
        let limit = u64::from(i32::MAX.unsigned_abs());
        let few = |ticks: u64, each: u64| ticks.checked_mul(each).is_some_and(|all| all < limit / 4);
        if !few(ticks, trickle_orders) || !few(ticks / refresh_every + 1, refresh) {
            return Err(TpchError::TooMany { ticks, scale });
        }
        Ok(TpchFeed {
            spec,
            source: Source { scale },
            schedule,
            base: Permutation::new(orders, seed),
            keys: Permutation::new(orders, seed ^ 0x00CE_A000),
            blocks: Permutation::new((orders / BLOCK_ORDERS).max(1), seed ^ 0xB10C),
            new_first,
        })
    }

    /// The generator's part number, with as many parts as base orders, and the key of `order`.
    fn identity(&self, order: Order) -> (i32, i64) {
        let (ordinal, key) = match order {
            Order::Base(position) => {
                let ordinal = self.base.of(position) + 1;
                (ordinal, OrderGenerator::make_order_key(ordinal as i64))
            }
            Order::New(number) => {
                let (round, place) = (number / self.base.len, number % self.base.len);
                let key = match round {
                    // Bits 3 and 4 of a base order's key are 0.
                    0..3 => {
                        let place = (self.keys.of(place) + 1) as i64;
                        OrderGenerator::make_order_key(place) | ((round as i64 + 1) << 3)
                    }
                    // The gaps are full: go on beyond the largest base key.
                    _ => OrderGenerator::make_order_key((number - 2 * self.base.len + 1) as i64),
                };
                (self.new_first + number, key)
            }
        };
        // `TpchFeed::new` has refused feeds with larger ordinals.
        (ordinal as i32, key)
    }

    /// The parts of the generator when each is one order.
    fn singles(&self) -> i32 {
        // As above.
        self.base.len as i32
    }

    fn lines_of(&self, part: i32) -> Vec<LineItem<'static>> {
        self.source.lines(part, self.singles()).iter().collect()
    }

    /// Whether what happens to `order` after the snapshot falls to `worker`.
    fn falls_to(&self, order: Order, worker: u32, workers: u32) -> bool {
        let (_, key) = self.identity(order);
        scramble(key as u64 ^ self.spec.seed) % u64::from(workers) == u64::from(worker)
    }

    fn stream<S: Sheet + Send + 'static>(
        &self,
        sheet: S,
        lower: u64,
        upper: u64,
        worker: u32,
        workers: u32,
    ) -> Stream<S> {
        let block = if lower == 0 && upper > 0 { u64::from(worker) } else { self.blocks.len };
        Stream {
            feed: *self,
            sheet,
            worker,
            workers,
            block,
            rows: None,
            tick: lower.max(1),
            upper: upper.min(self.end()),
            orders: Vec::new().into_iter(),
        }
    }
}

impl Feed for TpchFeed {
    fn tables(&self) -> Vec<Table> {
        vec![rows::orders_table(), rows::lines_table()]
    }

    fn as_of(&self) -> u64 {
        0
    }

    fn end(&self) -> u64 {
        self.spec.ticks + 1
    }

    fn updates(&self, table: usize, lower: u64, upper: u64, worker: u32, workers: u32) -> Updates<'_> {
        if let Some(error) = feed::misuse(table, 2, worker, workers) {
            return Box::new(std::iter::once(Err(error)));
        }
        match table {
            0 => Box::new(self.stream(OrderBatch::new(), lower, upper, worker, workers)),
            _ => Box::new(self.stream(LineBatch::new(), lower, upper, worker, workers)),
        }
    }
}

/// What differs between the two tables.
trait Sheet {
    /// The snapshot's rows of a part.
    type Base: Iterator;
    /// Begins a part of the snapshot.
    fn base(source: &Source, part: i32, parts: i32) -> Self::Base;
    /// Writes a row of the snapshot.
    fn push_base(&mut self, row: &<Self::Base as Iterator>::Item) -> anyhow::Result<()>;
    /// Writes what happens to `order` at `tick`: at most [`EVENT_ROWS`].
    fn push_event(&mut self, feed: &TpchFeed, order: Order, tick: u64) -> anyhow::Result<()>;
    /// How many rows are written.
    fn rows(&self) -> usize;
    /// The batch of what is written.
    fn finish(&mut self) -> anyhow::Result<RecordBatch>;
}

/// The most rows of one order at one tick: each line out and in.
const EVENT_ROWS: usize = 2 * OrderGenerator::LINE_COUNT_MAX as usize;

/// The stamp of a row of the snapshot.
const BASE: Stamp = Stamp { time: 0, diff: 1 };

impl Sheet for OrderBatch {
    type Base = OrderGeneratorIterator<'static>;

    fn base(source: &Source, part: i32, parts: i32) -> Self::Base {
        source.orders(part, parts).iter()
    }

    fn push_base(&mut self, row: &tpchgen::generators::Order<'static>) -> anyhow::Result<()> {
        self.push(row, row.o_orderkey, row.o_orderstatus, BASE)
    }

    fn push_event(&mut self, feed: &TpchFeed, order: Order, tick: u64) -> anyhow::Result<()> {
        let life = feed.schedule.life(order);
        let (before, after) = (life.before(tick), life.at(tick));
        if before == after {
            return Ok(());
        }
        let (part, key) = feed.identity(order);
        let lines = feed.lines_of(part);
        let status = |stage: Option<Stage>| stage.map(|stage| rows::order_status(&lines, stage));
        let (before, after) = (status(before), status(after));
        if before == after {
            return Ok(());
        }
        for row in feed.source.orders(part, feed.singles()).iter() {
            for (status, diff) in [(before, -1), (after, 1)] {
                if let Some(status) = status {
                    self.push(&row, key, status, Stamp { time: tick, diff })?;
                }
            }
        }
        Ok(())
    }

    fn rows(&self) -> usize {
        OrderBatch::rows(self)
    }

    fn finish(&mut self) -> anyhow::Result<RecordBatch> {
        OrderBatch::finish(self)
    }
}

impl Sheet for LineBatch {
    type Base = LineItemGeneratorIterator<'static>;

    fn base(source: &Source, part: i32, parts: i32) -> Self::Base {
        source.lines(part, parts).iter()
    }

    fn push_base(&mut self, row: &LineItem<'static>) -> anyhow::Result<()> {
        self.push(row, row.l_orderkey, row.l_linestatus, BASE);
        Ok(())
    }

    fn push_event(&mut self, feed: &TpchFeed, order: Order, tick: u64) -> anyhow::Result<()> {
        let life = feed.schedule.life(order);
        let (before, after) = (life.before(tick), life.at(tick));
        if before == after {
            return Ok(());
        }
        let (part, key) = feed.identity(order);
        let lines = feed.lines_of(part);
        let statuses = |stage: Option<Stage>| -> Vec<Option<&'static str>> {
            match stage {
                Some(stage) => rows::line_statuses(&lines, stage).map(Some).collect(),
                None => vec![None; lines.len()],
            }
        };
        for ((line, before), after) in lines.iter().zip(statuses(before)).zip(statuses(after)) {
            if before == after {
                continue;
            }
            for (status, diff) in [(before, -1), (after, 1)] {
                if let Some(status) = status {
                    self.push(line, key, status, Stamp { time: tick, diff });
                }
            }
        }
        Ok(())
    }

    fn rows(&self) -> usize {
        LineBatch::rows(self)
    }

    fn finish(&mut self) -> anyhow::Result<RecordBatch> {
        LineBatch::finish(self)
    }
}

/// One answer: first the worker's blocks of the snapshot, then tick by tick.
struct Stream<S: Sheet> {
    feed: TpchFeed,
    sheet: S,
    worker: u32,
    workers: u32,
    /// The next block, as dealt; the number of blocks when there is none.
    block: u64,
    /// What is left of the block before.
    rows: Option<S::Base>,
    /// The next tick.
    tick: u64,
    upper: u64,
    /// What is left of the tick before.
    orders: std::vec::IntoIter<Order>,
}

impl<S: Sheet> Stream<S> {
    /// Writes until a batch is full or all is written.
    fn fill(&mut self) -> anyhow::Result<()> {
        while self.sheet.rows() < BATCH_ROWS {
            if let Some(row) = self.rows.as_mut().and_then(Iterator::next) {
                self.sheet.push_base(&row)?;
                continue;
            }
            let blocks = self.feed.blocks;
            if self.block >= blocks.len {
                break;
            }
            // Both are below 2^31, by the range of the scale.
            let (part, parts) = (blocks.of(self.block) as i32 + 1, blocks.len as i32);
            self.rows = Some(S::base(&self.feed.source, part, parts));
            self.block += u64::from(self.workers);
        }
        while self.sheet.rows() + EVENT_ROWS <= BATCH_ROWS {
            if let Some(order) = self.orders.next() {
                let tick = self.tick - 1;
                self.sheet.push_event(&self.feed, order, tick)?;
                continue;
            }
            if self.tick >= self.upper {
                break;
            }
            let mine = |order: &Order| self.feed.falls_to(*order, self.worker, self.workers);
            let orders: Vec<_> = self.feed.schedule.touched(self.tick).into_iter().filter(mine).collect();
            self.orders = orders.into_iter();
            self.tick += 1;
        }
        Ok(())
    }
}

impl<S: Sheet> Iterator for Stream<S> {
    type Item = anyhow::Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.fill() {
            Ok(()) if self.sheet.rows() == 0 => None,
            Ok(()) => Some(self.sheet.finish()),
            Err(error) => Some(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests;
