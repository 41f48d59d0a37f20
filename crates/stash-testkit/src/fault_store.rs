//! A store whose operations fail by plan, stand at gates and are counted.
//!
//! [`FaultStore`] wraps any [`BlobStore`] and is one. Without plan and gates it changes nothing: it passes the
//! same conformance suite as what it wraps. Tests keep it in an `Arc`, hand clones of that to the system, and
//! change plan and gates while the system runs.
#![deny(clippy::missing_trait_methods)]

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream, stream::BoxStream};
use stash_blob::{BlobEntry, BlobEntryKind, BlobError, BlobStore, Deleted, PutOutcome, look_by_listing};
use stash_types::{BlobKey, BlobPrefix};

use crate::{Fault, FaultPlan, Gate, Op, Point, gate::GateState};

/// What a store was asked, faults included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls of `put_new`.
    pub puts: u64,
    /// Calls of `get` and `get_range`.
    pub gets: u64,
    /// Calls of `head`.
    pub heads: u64,
    /// Calls of `delete`.
    pub deletes: u64,
    /// Keys in those calls.
    pub keys_deleted: u64,
    /// Listings that were begun.
    pub lists: u64,
    /// Calls of `abort_upload`.
    pub aborts: u64,
    /// Bytes handed to `put_new`.
    pub bytes_put: u64,
    /// Bytes that reads returned.
    pub bytes_got: u64,
    /// Operations that went wrong by plan.
    pub faults: u64,
}

/// A store that fails by plan; see the module.
pub struct FaultStore<S> {
    inner: S,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    plan: FaultPlan,
    gates: Vec<Arc<GateState>>,
    counts: Counts,
}

impl<S: BlobStore> FaultStore<S> {
    /// Wraps `inner`; nothing goes wrong until a plan is set.
    pub fn new(inner: S) -> FaultStore<S> {
        FaultStore { inner, state: Mutex::default() }
    }

    /// The store below, where nothing goes wrong: to look at what really happened.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Lets operations go wrong by `plan` from now on.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.lock().plan = plan;
    }

    /// Lets nothing go wrong any more. Gates stay.
    pub fn heal(&self) {
        self.set_plan(FaultPlan::none());
    }

    /// Holds all operations of a kind at `point` until the gate is released or dropped.
    pub fn hold(&self, op: Op, point: Point) -> Gate {
        self.add_gate(op, point, None)
    }

    /// Holds the operations of a kind on one key. A bulk delete is held whole if one of its keys is meant.
    pub fn hold_key(&self, op: Op, point: Point, key: &BlobKey) -> Gate {
        self.add_gate(op, point, Some(key.as_str().to_owned()))
    }

    /// What was asked so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Counts from zero again; returns what was asked until now.
    pub fn reset_counts(&self) -> Counts {
        std::mem::take(&mut self.lock().counts)
    }

    fn add_gate(&self, op: Op, point: Point, key: Option<String>) -> Gate {
        let (gate, state) = Gate::new(op.name(), point, key);
        let mut locked = self.lock();
        locked.gates.retain(|gate| !gate.is_open());
        locked.gates.push(state);
        gate
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.lock().counts);
    }

    fn plan(&self, op: Op, key: &str) -> Option<Fault> {
        let mut state = self.lock();
        let fault = state.plan.next(op, key);
        state.counts.faults += u64::from(fault.is_some());
        fault
    }

    async fn pass_gates(&self, op: Op, point: Point, keys: &[&str]) {
        let gates: Vec<Arc<GateState>> = {
            let state = self.lock();
            let concerned =
                |gate: &&Arc<GateState>| keys.iter().any(|key| gate.concerns(op.name(), point, key));
            state.gates.iter().filter(concerned).map(Arc::clone).collect()
        };
        for gate in gates {
            gate.pass().await;
        }
    }

    /// Runs one operation on one key: gate, fault or effect, gate. `lie` turns a true answer, where there
    /// is one, into a false one; operations whose lie needs no truth pass `None` for it.
    async fn run<T>(
        &self,
        op: Op,
        key: &str,
        effect: impl Future<Output = Result<T, BlobError>>,
        lie: Lie<T>,
    ) -> Result<T, BlobError> {
        self.pass_gates(op, Point::Before, &[key]).await;
        let answer = match (self.plan(op, key), lie) {
            (None, _) => effect.await,
            (Some(Fault::LostReply), _) => effect.await.and_then(|_| Err(unknown(op, key))),
            (Some(Fault::Refused { retry }), _) => Err(refused(op, key, retry)),
            (Some(Fault::Denied), _) => Err(denied(op, key)),
            (Some(Fault::TimedOut), _) => Err(unknown(op, key)),
            (Some(Fault::Lie), Lie::Instead(answer)) => Ok(answer),
            (Some(Fault::Lie), Lie::About(spoil)) => effect.await.map(spoil),
        };
        self.pass_gates(op, Point::After, &[key]).await;
        answer
    }
}

/// How an operation lies.
enum Lie<T> {
    /// It does nothing and answers this.
    Instead(T),
    /// It spoils the true answer.
    About(fn(T) -> T),
}

impl<S: BlobStore> fmt::Debug for FaultStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FaultStore").field(&self.inner).finish()
    }
}

#[async_trait]
impl<S: BlobStore> BlobStore for FaultStore<S> {
    fn location(&self) -> String {
        self.inner.location()
    }

    async fn put_new(&self, key: &BlobKey, chunks: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        let bytes: usize = chunks.iter().map(Bytes::len).sum();
        self.count(|counts| {
            counts.puts += 1;
            counts.bytes_put += bytes as u64;
        });
        let effect = self.inner.put_new(key, chunks);
        self.run(Op::Put, key.as_str(), effect, Lie::Instead(PutOutcome::Created)).await
    }

    async fn get_range(&self, key: &BlobKey, range: Range<u64>) -> Result<Bytes, BlobError> {
        self.count(|counts| counts.gets += 1);
        let effect = self.inner.get_range(key, range);
        let answer = self.run(Op::Get, key.as_str(), effect, Lie::About(flip_a_bit)).await?;
        self.count(|counts| counts.bytes_got += answer.len() as u64);
        Ok(answer)
    }

    async fn get(&self, key: &BlobKey, len_max: u64) -> Result<Bytes, BlobError> {
        self.count(|counts| counts.gets += 1);
        let effect = self.inner.get(key, len_max);
        let answer = self.run(Op::Get, key.as_str(), effect, Lie::About(flip_a_bit)).await?;
        self.count(|counts| counts.bytes_got += answer.len() as u64);
        Ok(answer)
    }

    async fn head(&self, key: &BlobKey) -> Result<Option<u64>, BlobError> {
        self.count(|counts| counts.heads += 1);
        self.run(Op::Head, key.as_str(), self.inner.head(key), Lie::Instead(None)).await
    }

    async fn delete(&self, keys: &[BlobKey]) -> Vec<Deleted> {
        self.count(|counts| {
            counts.deletes += 1;
            counts.keys_deleted += keys.len() as u64;
        });
        let names: Vec<&str> = keys.iter().map(BlobKey::as_str).collect();
        self.pass_gates(Op::Delete, Point::Before, &names).await;
        let faults: Vec<Option<Fault>> = names.iter().map(|name| self.plan(Op::Delete, name)).collect();
        let happens = |fault: &Option<Fault>| matches!(fault, None | Some(Fault::LostReply));
        let asked: Vec<BlobKey> = keys
            .iter()
            .zip(&faults)
            .filter(|(_, fault)| happens(fault))
            .map(|(key, _)| key.clone())
            .collect();
        let mut truths = self.inner.delete(&asked).await.into_iter();
        let mut answers = Vec::with_capacity(keys.len());
        for (key, fault) in keys.iter().zip(faults) {
            let (op, name) = (Op::Delete, key.as_str());
            let outcome = match fault {
                None => truths.next().map_or_else(|| Err(unknown(op, name)), |truth| truth.outcome),
                Some(Fault::LostReply) => {
                    truths.next();
                    Err(unknown(op, name))
                }
                Some(Fault::TimedOut) => Err(unknown(op, name)),
                Some(Fault::Refused { retry }) => Err(refused(op, name, retry)),
                Some(Fault::Denied) => Err(denied(op, name)),
                Some(Fault::Lie) => Ok(true),
            };
            answers.push(Deleted { key: key.clone(), outcome });
        }
        self.pass_gates(Op::Delete, Point::After, &names).await;
        answers
    }

    async fn abort_upload(&self, key: &BlobKey, token: &str) -> Result<(), BlobError> {
        self.count(|counts| counts.aborts += 1);
        let effect = self.inner.abort_upload(key, token);
        self.run(Op::Abort, key.as_str(), effect, Lie::Instead(())).await
    }

    /// A listing fails at its beginning, or (a lost reply) after its first entry.
    fn list(&self, prefix: BlobPrefix) -> BoxStream<'_, Result<BlobEntry, BlobError>> {
        let begin = async move {
            let (op, name) = (Op::List, prefix.to_string());
            self.count(|counts| counts.lists += 1);
            self.pass_gates(op, Point::Before, &[&name]).await;
            let failed = |error| stream::iter([Err(error)]).boxed();
            let entries = match self.plan(op, &name) {
                None => self.inner.list(prefix),
                Some(Fault::Refused { retry }) => failed(refused(op, &name, retry)),
                Some(Fault::Denied) => failed(denied(op, &name)),
                Some(Fault::TimedOut) => failed(unknown(op, &name)),
                Some(Fault::LostReply) => {
                    self.inner.list(prefix).take(1).chain(failed(unknown(op, &name))).boxed()
                }
                Some(Fault::Lie) => stream::empty().boxed(),
            };
            let end = stream::once(async move {
                self.pass_gates(op, Point::After, &[&name]).await;
                stream::empty().boxed()
            });
            entries.chain(end.flatten())
        };
        stream::once(begin).flatten().boxed()
    }

    /// By listing, which fails like any other.
    async fn look_again(&self, entries: &[BlobEntryKind]) -> Result<Vec<Option<u64>>, BlobError> {
        look_by_listing(|folder| self.list(folder), entries).await
    }
}

fn refused(op: Op, key: &str, retry: bool) -> BlobError {
    let what = "refused by the test's plan".to_owned();
    BlobError::Determinate { op: op.name(), key: key.to_owned(), what, retry, source: None }
}

fn denied(op: Op, key: &str) -> BlobError {
    let what = "these credentials may not, by the test's plan".to_owned();
    BlobError::Denied { op: op.name(), key: key.to_owned(), what, source: None }
}

fn unknown(op: Op, key: &str) -> BlobError {
    let what = "timed out by the test's plan".to_owned();
    BlobError::Indeterminate { op: op.name(), key: key.to_owned(), what, source: None }
}

/// Bytes that differ in one bit, in the middle. An empty answer stays as it is.
fn flip_a_bit(bytes: Bytes) -> Bytes {
    let mut spoiled = bytes.to_vec();
    let middle = spoiled.len() / 2;
    if let Some(byte) = spoiled.get_mut(middle) {
        *byte ^= 0x10;
    }
    spoiled.into()
}

#[cfg(test)]
mod tests;
