//! The rows of orders and their lines, as Arrow columns.
//!
//! The generator of the benchmark's data is seekable, and its parts go on beyond the last one: with as many
//! parts as base orders, part i is the order with ordinal i alone, whether base or not.

use std::{
    fmt::Write,
    sync::{Arc, LazyLock},
};

use arrow::{
    array::{
        ArrayRef, Date32Builder, Decimal128Builder, Int32Builder, Int64Builder, RecordBatch, StringBuilder,
        UInt64Builder,
    },
    datatypes::{DataType, Field, Schema, SchemaRef},
};
use tpchgen::{
    distribution::Distributions,
    generators::{LineItem, LineItemGenerator, Order, OrderGenerator, OrderStatus},
    text::TextPool,
};

use super::schedule::Stage;
use crate::demo::feed::{BATCH_ROWS, Table};

/// Bytes of text that comments are cut from. The benchmark's own tool takes 300 MiB, which nobody wants to wait for;
/// so comments differ from the benchmark's, and nothing else does.
const TEXT_BYTES: i32 = if cfg!(test) { 64 << 10 } else { 8 << 20 };

static TEXT: LazyLock<TextPool> =
    LazyLock::new(|| TextPool::new(TEXT_BYTES, Distributions::static_default()));

/// The precision of decimals.
const PRECISION: u8 = 15;
/// The scale of decimals.
const SCALE: i8 = 2;

/// Generates orders and lines of one scale.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// The benchmark's scale factor.
    pub scale: f64,
}

impl Source {
    /// The generator of part `part` of `parts`, counted from 1.
    pub fn orders(&self, part: i32, parts: i32) -> OrderGenerator<'static> {
        OrderGenerator::new_with_distributions_and_text_pool(
            self.scale,
            part,
            parts,
            Distributions::static_default(),
            &TEXT,
        )
    }

    /// The lines of the orders of the same part.
    pub fn lines(&self, part: i32, parts: i32) -> LineItemGenerator<'static> {
        LineItemGenerator::new_with_distributions_and_text_pool(
            self.scale,
            part,
            parts,
            Distributions::static_default(),
            &TEXT,
        )
    }
}

/// The status of each of `lines` when the order is at `stage`.
pub(super) fn line_statuses<'a>(
    lines: &'a [LineItem<'static>],
    stage: Stage,
) -> impl Iterator<Item = &'static str> + 'a {
    let open = lines.iter().filter(|line| line.l_linestatus == "O").count();
    let mut shipped = match stage {
        Stage::Placed => 0,
        Stage::Partial => open.div_ceil(2),
        Stage::Complete => open,
    };
    lines.iter().map(move |line| {
        if line.l_linestatus == "O" && shipped > 0 {
            shipped -= 1;
            "F"
        } else {
            line.l_linestatus
        }
    })
}

/// The status of an order with `lines` when it is at `stage`.
pub(super) fn order_status(lines: &[LineItem<'static>], stage: Stage) -> OrderStatus {
    let shipped = line_statuses(lines, stage).filter(|status| *status == "F").count();
    if shipped == lines.len() {
        OrderStatus::Fulfilled
    } else if shipped > 0 {
        OrderStatus::Pending
    } else {
        OrderStatus::Open
    }
}

/// The time and diff with which a row is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    /// The time.
    pub time: u64,
    /// The diff.
    pub diff: i64,
}

/// The last two columns of every batch.
#[derive(Debug)]
struct StampBuilder {
    time: UInt64Builder,
    diff: Int64Builder,
}

impl StampBuilder {
    fn new() -> StampBuilder {
        StampBuilder {
            time: UInt64Builder::with_capacity(BATCH_ROWS),
            diff: Int64Builder::with_capacity(BATCH_ROWS),
        }
    }

    fn push(&mut self, Stamp { time, diff }: Stamp) {
        self.time.append_value(time);
        self.diff.append_value(diff);
    }

    fn finish(&mut self, schema: &SchemaRef, mut columns: Vec<ArrayRef>) -> anyhow::Result<RecordBatch> {
        columns.push(Arc::new(self.time.finish()));
        columns.push(Arc::new(self.diff.finish()));
        Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
    }
}

fn decimals() -> Decimal128Builder {
    Decimal128Builder::with_capacity(BATCH_ROWS).with_data_type(DataType::Decimal128(PRECISION, SCALE))
}

fn strings() -> StringBuilder {
    StringBuilder::with_capacity(BATCH_ROWS, BATCH_ROWS * 8)
}

fn table(name: &str, columns: &[(&str, DataType)]) -> Table {
    let field = |(name, data_type): &(&str, DataType)| Field::new(*name, data_type.clone(), false);
    Table {
        name: name.to_owned(),
        schema: Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>())),
    }
}

/// The table of orders.
pub(super) fn orders_table() -> Table {
    let decimal = DataType::Decimal128(PRECISION, SCALE);
    table(
        "orders",
        &[
            ("o_orderkey", DataType::Int64),
            ("o_custkey", DataType::Int64),
            ("o_orderstatus", DataType::Utf8),
            ("o_totalprice", decimal),
            ("o_orderdate", DataType::Date32),
            ("o_orderpriority", DataType::Utf8),
            ("o_clerk", DataType::Utf8),
            ("o_shippriority", DataType::Int32),
            ("o_comment", DataType::Utf8),
        ],
    )
}

/// The table of lines.
pub(super) fn lines_table() -> Table {
    let decimal = DataType::Decimal128(PRECISION, SCALE);
    table(
        "lineitem",
        &[
            ("l_orderkey", DataType::Int64),
            ("l_partkey", DataType::Int64),
            ("l_suppkey", DataType::Int64),
            ("l_linenumber", DataType::Int32),
            ("l_quantity", decimal.clone()),
            ("l_extendedprice", decimal.clone()),
            ("l_discount", decimal.clone()),
            ("l_tax", decimal),
            ("l_returnflag", DataType::Utf8),
            ("l_linestatus", DataType::Utf8),
            ("l_shipdate", DataType::Date32),
            ("l_commitdate", DataType::Date32),
            ("l_receiptdate", DataType::Date32),
            ("l_shipinstruct", DataType::Utf8),
            ("l_shipmode", DataType::Utf8),
            ("l_comment", DataType::Utf8),
        ],
    )
}

/// Collects orders into a batch.
#[derive(Debug)]
pub(super) struct OrderBatch {
    schema: SchemaRef,
    key: Int64Builder,
    customer: Int64Builder,
    status: StringBuilder,
    price: Decimal128Builder,
    date: Date32Builder,
    priority: StringBuilder,
    clerk: StringBuilder,
    ship_priority: Int32Builder,
    comment: StringBuilder,
    stamp: StampBuilder,
}

impl OrderBatch {
    /// An empty one.
    pub fn new() -> OrderBatch {
        OrderBatch {
            schema: orders_table().update_schema(),
            key: Int64Builder::with_capacity(BATCH_ROWS),
            customer: Int64Builder::with_capacity(BATCH_ROWS),
            status: strings(),
            price: decimals(),
            date: Date32Builder::with_capacity(BATCH_ROWS),
            priority: strings(),
            clerk: strings(),
            ship_priority: Int32Builder::with_capacity(BATCH_ROWS),
            comment: strings(),
            stamp: StampBuilder::new(),
        }
    }

    /// How many rows it holds.
    pub fn rows(&self) -> usize {
        self.stamp.diff.values_slice().len()
    }

    /// Adds `order` under `key` with `status`.
    pub fn push(
        &mut self,
        order: &Order<'_>,
        key: i64,
        status: OrderStatus,
        stamp: Stamp,
    ) -> anyhow::Result<()> {
        self.key.append_value(key);
        self.customer.append_value(order.o_custkey);
        self.status.append_value(status.as_str());
        self.price.append_value(order.o_totalprice.0.into());
        self.date.append_value(order.o_orderdate.to_unix_epoch());
        self.priority.append_value(order.o_orderpriority);
        write!(self.clerk, "{}", order.o_clerk)?;
        self.clerk.append_value("");
        self.ship_priority.append_value(order.o_shippriority);
        self.comment.append_value(order.o_comment);
        self.stamp.push(stamp);
        Ok(())
    }

    /// The batch; this is empty again.
    pub fn finish(&mut self) -> anyhow::Result<RecordBatch> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.key.finish()),
            Arc::new(self.customer.finish()),
            Arc::new(self.status.finish()),
            Arc::new(self.price.finish()),
            Arc::new(self.date.finish()),
            Arc::new(self.priority.finish()),
            Arc::new(self.clerk.finish()),
            Arc::new(self.ship_priority.finish()),
            Arc::new(self.comment.finish()),
        ];
        self.stamp.finish(&self.schema, columns)
    }
}

/// Collects lines into a batch.
#[derive(Debug)]
pub(super) struct LineBatch {
    schema: SchemaRef,
    /// Order, part and supplier.
    keys: [Int64Builder; 3],
    number: Int32Builder,
    /// Quantity, price, discount and tax.
    amounts: [Decimal128Builder; 4],
    /// Return flag and line status.
    flags: [StringBuilder; 2],
    /// Shipped, committed and received.
    dates: [Date32Builder; 3],
    /// Instruction, mode and comment.
    texts: [StringBuilder; 3],
    stamp: StampBuilder,
}

impl LineBatch {
    /// An empty one.
    pub fn new() -> LineBatch {
        LineBatch {
            schema: lines_table().update_schema(),
            keys: std::array::from_fn(|_| Int64Builder::with_capacity(BATCH_ROWS)),
            number: Int32Builder::with_capacity(BATCH_ROWS),
            amounts: std::array::from_fn(|_| decimals()),
            flags: std::array::from_fn(|_| strings()),
            dates: std::array::from_fn(|_| Date32Builder::with_capacity(BATCH_ROWS)),
            texts: std::array::from_fn(|_| strings()),
            stamp: StampBuilder::new(),
        }
    }

    /// How many rows it holds.
    pub fn rows(&self) -> usize {
        self.stamp.diff.values_slice().len()
    }

    /// Adds `line` under the order `key` with `status`.
    pub fn push(&mut self, line: &LineItem<'_>, key: i64, status: &str, stamp: Stamp) {
        let keys = [key, line.l_partkey, line.l_suppkey];
        let amounts = [line.l_quantity * 100, line.l_extendedprice.0, line.l_discount.0, line.l_tax.0];
        let dates = [line.l_shipdate, line.l_commitdate, line.l_receiptdate];
        let texts = [line.l_shipinstruct, line.l_shipmode, line.l_comment];
        self.keys.iter_mut().zip(keys).for_each(|(column, key)| column.append_value(key));
        self.number.append_value(line.l_linenumber);
        self.amounts.iter_mut().zip(amounts).for_each(|(column, amount)| column.append_value(amount.into()));
        self.flags
            .iter_mut()
            .zip([line.l_returnflag, status])
            .for_each(|(column, flag)| column.append_value(flag));
        self.dates.iter_mut().zip(dates).for_each(|(column, date)| column.append_value(date.to_unix_epoch()));
        self.texts.iter_mut().zip(texts).for_each(|(column, text)| column.append_value(text));
        self.stamp.push(stamp);
    }

    /// The batch; this is empty again.
    pub fn finish(&mut self) -> anyhow::Result<RecordBatch> {
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(18);
        columns.extend(self.keys.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef));
        columns.push(Arc::new(self.number.finish()));
        columns.extend(self.amounts.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef));
        columns.extend(self.flags.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef));
        columns.extend(self.dates.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef));
        columns.extend(self.texts.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef));
        self.stamp.finish(&self.schema, columns)
    }
}
