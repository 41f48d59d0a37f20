//! A proxy before an object store, that records what is asked and lets it go wrong by plan.
//!
//! Clients use the proxy's endpoint, path style, in plain HTTP/1.1 on the loopback. A request reaches the server as it was sent:
//! same line, headers and body, `Host` too, since signatures cover it and the servers of [`servers`](crate::servers) take any.
//! Bodies stream. Around that,
//!
//! - every request is recorded: [`Request`] and [`Tally`];
//! - requests go wrong by a [`Scenario`] and a seed, which are printed when they are set;
//! - requests stand at gates ([`FaultProxy::hold`]) while a test acts.
//!
//! What the proxy makes up is what object stores really do. It never lies about success: a client that was told 2xx has what it
//! asked for, except where a bulk delete names its errors.

mod body;
mod bulk;
mod call;
mod forward;
mod record;
mod scenario;
mod socket;

use std::{
    collections::BTreeMap,
    io, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

pub use call::Call;
use http::request::Parts;
pub use record::{Request, Tally};
use scenario::Plan;
pub use scenario::{Fault, Refusal, Scenario, UnknownScenario};

use crate::{Gate, Point, background::Background, gate::GateState, servers::S3Server};

/// A proxy before an object store; see the module. It ends with this.
#[derive(Debug)]
pub struct FaultProxy {
    shared: Arc<Shared>,
    background: Background,
}

/// What the connections of a proxy share.
#[derive(Debug)]
struct Shared {
    port: u16,
    /// Asks the server itself, for bulk deletes that succeed in part.
    client: aws_sdk_s3::Client,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    plan: Plan,
    gates: Vec<Arc<GateState>>,
    requests: Vec<Request>,
    /// Requests before this one were forgotten: those under way must not write over others.
    first: usize,
    attempts: BTreeMap<(Call, String, String, String, Option<String>), u32>,
}

impl FaultProxy {
    /// A proxy before `server`; nothing goes wrong until a scenario is set.
    pub fn start(server: &S3Server) -> io::Result<FaultProxy> {
        let state = State {
            plan: Plan::new(Scenario::Healthy, 0),
            gates: Vec::new(),
            requests: Vec::new(),
            first: 0,
            attempts: BTreeMap::new(),
        };
        let shared =
            Arc::new(Shared { port: server.port(), client: server.client(), state: Mutex::new(state) });
        let background = Background::listen({
            let shared = Arc::clone(&shared);
            move |stream| forward::serve(Arc::clone(&shared), stream)
        })?;
        Ok(FaultProxy { shared, background })
    }

    /// `http://127.0.0.1:PORT`
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.background.port())
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.background.port()
    }

    /// Lets requests go wrong from now on, and prints how: scenario and seed play it again.
    pub fn set(&self, scenario: Scenario, seed: u64) {
        eprintln!("fault proxy: {scenario}, seed {seed}");
        self.shared.lock().plan = Plan::new(scenario, seed);
    }

    /// Lets nothing go wrong any more. Gates stay.
    pub fn heal(&self) {
        self.shared.lock().plan = Plan::new(Scenario::Healthy, 0);
    }

    /// Holds all requests of a call at `point` until the gate is released or dropped: before the server is asked, or after
    /// it answered.
    pub fn hold(&self, call: Call, point: Point) -> Gate {
        self.shared.add_gate(call, point, None)
    }

    /// Holds the requests of a call for one key.
    pub fn hold_key(&self, call: Call, point: Point, key: &str) -> Gate {
        self.shared.add_gate(call, point, Some(key.to_owned()))
    }

    /// All requests since the beginning, or since they were last taken, those under way included.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    /// The same, and forgets them.
    pub fn take_requests(&self) -> Vec<Request> {
        let mut state = self.shared.lock();
        state.first += state.requests.len();
        mem::take(&mut state.requests)
    }

    /// All requests by call.
    pub fn tallies(&self) -> BTreeMap<Call, Tally> {
        let mut tallies = BTreeMap::<Call, Tally>::new();
        for request in &self.shared.lock().requests {
            tallies.entry(request.call).or_default().add(request);
        }
        tallies
    }

    /// The requests of a call.
    pub fn tally(&self, call: Call) -> Tally {
        self.tallies().remove(&call).unwrap_or_default()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_gate(&self, call: Call, point: Point, key: Option<String>) -> Gate {
        let (gate, state) = Gate::new(call.name(), point, key);
        let mut locked = self.lock();
        locked.gates.retain(|gate| !gate.is_open());
        locked.gates.push(state);
        gate
    }

    /// Stands at the gates that concern a request.
    async fn pass_gates(&self, request: &Request, point: Point) {
        let gates: Vec<Arc<GateState>> = {
            let state = self.lock();
            let concerned = |gate: &&Arc<GateState>| gate.concerns(request.call.name(), point, &request.key);
            state.gates.iter().filter(concerned).map(Arc::clone).collect()
        };
        for gate in gates {
            gate.pass().await;
        }
    }

    /// Records a request that has come, and decides how it goes wrong.
    fn begin(self: &Arc<Self>, parts: &Parts) -> Recorded {
        let mut request = read(parts);
        let mut state = self.lock();
        let Request { call, bucket, key, query, range, .. } = &request;
        let named = (*call, bucket.clone(), key.clone(), query.clone(), range.clone());
        let attempts = state.attempts.entry(named).or_default();
        *attempts += 1;
        request.attempt = *attempts;
        request.fault = state.plan.next(&request);
        state.requests.push(request.clone());
        let place = state.first + state.requests.len() - 1;
        Recorded { shared: Arc::clone(self), place, request }
    }
}

/// A request under way.
#[derive(Clone, Debug)]
struct Recorded {
    shared: Arc<Shared>,
    place: usize,
    request: Request,
}

impl Recorded {
    /// Changes what is recorded, unless it was taken meanwhile.
    fn note(&self, note: impl FnOnce(&mut Request)) {
        let mut state = self.shared.lock();
        let first = state.first;
        if let Some(request) = self.place.checked_sub(first).and_then(|at| state.requests.get_mut(at)) {
            note(request);
        }
    }

    async fn pass_gates(&self, point: Point) {
        self.shared.pass_gates(&self.request, point).await;
    }
}

fn read(parts: &Parts) -> Request {
    let path = parts.uri.path().trim_start_matches('/');
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    let (bucket, key) = (decoded(bucket), decoded(key));
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    Request {
        call: Call::of(&parts.method, &key, &bucket, &query, &parts.headers),
        range: header("range").map(str::to_owned),
        create_only: header("if-none-match") == Some("*"),
        bucket,
        key,
        query,
        ..Request::default()
    }
}

/// A text of a path without its percent signs; as it is where they mean nothing.
fn decoded(text: &str) -> String {
    let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    let (mut rest, mut bytes) = (text.as_bytes(), Vec::with_capacity(text.len()));
    while let Some((first, after)) = rest.split_first() {
        let byte = after.get(..2).filter(|_| *first == b'%').and_then(hex);
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
