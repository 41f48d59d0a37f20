//! A proxy before PostgreSQL that breaks or holds a connection at a place that a test names.
//!
//! It reads where the client's messages begin and end (the frontend/backend protocol, version 3), and passes them on unchanged.
//! A *request* is what the server answers with `ReadyForQuery`: a simple query, or the `Sync` after extended ones. So "the
//! nth request, after" is the moment when the server has done what it was asked and the client does not know: its COMMIT
//! was sent and the connection breaks. A test that does not want to know which request commits breaks the 0th, the 1st, … until
//! nothing broke any more.
//!
//! A connection that goes over to TLS is passed on unread; only [`At::Bytes`] has a meaning there.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
};

use crate::{Gate, Point, background::Background, gate::GateState};

/// A place in what clients send, counted over all connections from when it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The nth request, from 0.
    Request(u64),
    /// The first message that has these bytes in it.
    Marker(Vec<u8>),
    /// The first message that goes beyond so many bytes. Broken before, just these bytes reach the server.
    Bytes(u64),
}

/// A proxy before PostgreSQL; see the module. It ends with this.
#[derive(Debug)]
pub struct TcpProxy {
    shared: Arc<Shared>,
    background: Background,
}

#[derive(Debug)]
struct Shared {
    server: u16,
    trap: Mutex<Option<Trap>>,
    open: watch::Sender<usize>,
    cuts: watch::Sender<u64>,
}

#[derive(Debug)]
struct Trap {
    at: At,
    point: Point,
    /// None: the connection breaks.
    gate: Option<Arc<GateState>>,
    sprung: bool,
}

/// What happens to a message that a trap names.
#[derive(Debug)]
struct Sprung {
    point: Point,
    gate: Option<Arc<GateState>>,
    /// So many of its bytes reach the server before.
    passes: usize,
}

impl TcpProxy {
    /// A proxy before the server at this port of 127.0.0.1.
    pub fn start(server: u16) -> io::Result<TcpProxy> {
        let (trap, open, cuts) = (Mutex::default(), watch::Sender::new(0), watch::Sender::new(0));
        let shared = Arc::new(Shared { server, trap, open, cuts });
        let background = Background::listen({
            let shared = Arc::clone(&shared);
            move |stream| serve(Arc::clone(&shared), stream)
        })?;
        Ok(TcpProxy { shared, background })
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.background.port()
    }

    /// Breaks the connection at a place, once: before the message there reaches the server, or after the server has answered
    /// it and before the client hears of that. In place of what was named before.
    pub fn cut_at(&self, at: At, point: Point) {
        self.shared.set(Trap { at, point, gate: None, sprung: false });
    }

    /// Holds the connection at a place, once, until the gate is released or dropped. In place of what was named before.
    pub fn hold_at(&self, at: At, point: Point) -> Gate {
        let (gate, state) = Gate::new("connection", point, None);
        self.shared.set(Trap { at, point, gate: Some(state), sprung: false });
        gate
    }

    /// Whether a connection was broken or held at the place that was named last.
    pub fn sprung(&self) -> bool {
        self.shared.lock().as_ref().is_some_and(|trap| trap.sprung)
    }

    /// Names no place any more.
    pub fn heal(&self) {
        *self.shared.lock() = None;
    }

    /// Breaks all connections that there are, those that are held too.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Waits until clients have so many connections.
    pub async fn wait_open(&self, count: usize) {
        // The sender lives in `self`, so the wait ends only by the count.
        let _ = self.shared.open.subscribe().wait_for(|open| *open == count).await;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Trap>> {
        self.trap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, trap: Trap) {
        *self.lock() = Some(trap);
    }

    /// Whether the place that was named is in this message.
    fn spring(&self, message: &Message) -> Option<Sprung> {
        let mut locked = self.lock();
        let trap = locked.as_mut().filter(|trap| !trap.sprung)?;
        let length = message.bytes.len();
        let mut passes = 0;
        let here = match &mut trap.at {
            At::Request(0) => message.is_request,
            At::Request(left) => {
                *left -= u64::from(message.is_request);
                false
            }
            At::Marker(marker) => {
                message.bytes.windows(marker.len().max(1)).any(|bytes| bytes == marker.as_slice())
            }
            At::Bytes(left) if (*left as usize) < length => {
                passes = *left as usize;
                true
            }
            At::Bytes(left) => {
                *left -= length as u64;
                false
            }
        };
        trap.sprung = here;
        here.then(|| Sprung { point: trap.point, gate: trap.gate.clone(), passes })
    }
}

/// A message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    bytes: Bytes,
    /// The server answers it with `ReadyForQuery`.
    is_request: bool,
    /// It asks for TLS or another encryption.
    asks_encryption: bool,
}

/// Where a client's messages begin and end.
#[derive(Debug, Default)]
enum Framing {
    /// Without a type in front, as a connection begins.
    #[default]
    Startup,
    /// With a type.
    Typed,
    /// Encrypted, or not what we know: as the bytes come.
    Unread,
}

impl Framing {
    /// Takes the next whole message out of what came.
    fn next(&mut self, came: &mut BytesMut) -> Option<Message> {
        const ENCRYPTIONS: [u32; 2] = [80_877_103, 80_877_104];
        let number = |at: usize| came.get(at..at + 4).map(|mut bytes| bytes.get_u32());
        let (length, is_request, asks_encryption) = match self {
            Framing::Unread if came.is_empty() => return None,
            Framing::Unread => (came.len(), false, false),
            Framing::Startup => {
                let asks_encryption = ENCRYPTIONS.contains(&number(4)?);
                (number(0)? as usize, false, asks_encryption)
            }
            Framing::Typed => {
                let is_request = matches!(came.first(), Some(b'Q' | b'S' | b'F'));
                (1 + number(1)? as usize, is_request, false)
            }
        };
        if came.len() < length {
            return None;
        }
        if matches!(self, Framing::Startup) && !asks_encryption {
            *self = Framing::Typed;
        }
        Some(Message { bytes: came.split_to(length).freeze(), is_request, asks_encryption })
    }
}

/// Serves a client until one of both leaves, or the connection is broken.
async fn serve(shared: Arc<Shared>, client: TcpStream) {
    shared.open.send_modify(|open| *open += 1);
    let mut cuts = shared.cuts.subscribe();
    let mut connection = Connection { shared: &shared, client, server: None, framing: Framing::Startup };
    let broken = tokio::select! {
        broken = connection.run() => broken.is_err(),
        _ = cuts.changed() => true,
    };
    if broken {
        let _ = connection.client.set_zero_linger();
        let _ = connection.server.as_ref().map(TcpStream::set_zero_linger);
    }
    drop(connection);
    shared.open.send_modify(|open| *open -= 1);
}

struct Connection<'a> {
    shared: &'a Shared,
    client: TcpStream,
    server: Option<TcpStream>,
    framing: Framing,
}

impl Connection<'_> {
    /// Passes on what comes. An error breaks the connection; otherwise one of both has closed it.
    async fn run(&mut self) -> io::Result<()> {
        let server = TcpStream::connect(("127.0.0.1", self.shared.server)).await?;
        server.set_nodelay(true)?;
        let (server, client) = (self.server.insert(server), &mut self.client);
        let (mut up, mut down) = (BytesMut::new(), BytesMut::new());
        // What waits for the server's answer to be whole.
        let mut withheld: Option<Sprung> = None;
        loop {
            tokio::select! {
                read = client.read_buf(&mut up) => {
                    if read? == 0 {
                        return Ok(());
                    }
                    while let Some(message) = self.framing.next(&mut up) {
                        let sprung = self.shared.spring(&message);
                        if let Some(sprung) = sprung.as_ref().filter(|sprung| sprung.point == Point::Before) {
                            server.write_all(message.bytes.get(..sprung.passes).unwrap_or_default()).await?;
                            sprung.pass().await?;
                            server.write_all(message.bytes.get(sprung.passes..).unwrap_or_default()).await?;
                        } else {
                            server.write_all(&message.bytes).await?;
                            withheld = sprung.or(withheld);
                        }
                        if message.asks_encryption {
                            let answer = server.read_u8().await?;
                            client.write_u8(answer).await?;
                            if answer != b'N' {
                                self.framing = Framing::Unread;
                            }
                        }
                    }
                }
                read = server.read_buf(&mut down) => {
                    if read? == 0 {
                        return Ok(());
                    }
                    if let Some(sprung) = &withheld {
                        if !ready(&down) {
                            continue;
                        }
                        sprung.pass().await?;
                        withheld = None;
                    }
                    client.write_all(&down.split()).await?;
                }
            }
        }
    }
}

impl Sprung {
    /// Stands at the gate, or breaks the connection.
    async fn pass(&self) -> io::Result<()> {
        match &self.gate {
            None => Err(io::Error::other("broken by plan")),
            Some(gate) => {
                Arc::clone(gate).pass().await;
                Ok(())
            }
        }
    }
}

/// Whether what the server sent ends with `ReadyForQuery`.
fn ready(sent: &[u8]) -> bool {
    let end = sent.len().checked_sub(6).and_then(|at| sent.get(at..));
    end.is_some_and(|end| end.starts_with(&[b'Z', 0, 0, 0, 5]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::{PostgresServer, postgres};

    fn framed(bytes: &[u8]) -> (Vec<(usize, bool)>, usize) {
        let (mut framing, mut came, mut messages) = (Framing::Startup, BytesMut::new(), Vec::new());
        for byte in bytes {
            came.extend_from_slice(&[*byte]);
            while let Some(message) = framing.next(&mut came) {
                messages.push((message.bytes.len(), message.is_request));
            }
        }
        (messages, came.len())
    }

    #[test]
    fn messages_are_told_apart_however_they_come() {
        let mut bytes = vec![0, 0, 0, 8, 4, 210, 22, 47]; // asks for TLS
        bytes.extend([0, 0, 0, 9, 0, 3, 0, 0, 0]); // begins
        bytes.extend([b'Q', 0, 0, 0, 6, b';', 0]);
        bytes.extend([b'P', 0, 0, 0, 4, b'E', 0, 0, 0, 5, 1, b'S', 0, 0, 0, 4]);
        bytes.extend([b'X', 0, 0]);
        let messages = vec![(8, false), (9, false), (7, true), (5, false), (6, false), (5, true)];
        assert_eq!(framed(&bytes), (messages, 3));
    }

    async fn world() -> Option<(&'static PostgresServer, TcpProxy, String)> {
        let server = postgres().await?;
        let database = server.new_database_name("tcp").await;
        server.query(&database, "CREATE TABLE rows (n INT)").await;
        Some((server, TcpProxy::start(server.port()).expect("a proxy"), database))
    }

    #[tokio::test]
    async fn what_breaks_before_has_no_effect_and_what_breaks_after_has() {
        let Some((server, proxy, database)) = world().await else { return };
        let insert = |n| server.try_query_at(proxy.port(), &database, n);
        insert("INSERT INTO rows VALUES (0)").await.expect("nothing breaks");
        let marker = At::Marker(b"VALUES".to_vec());
        for (at, point, there) in [
            (At::Request(0), Point::Before, "0"),
            (marker.clone(), Point::Before, "0"),
            (At::Bytes(20), Point::Before, "0"),
            (At::Request(0), Point::After, "0,1"),
            (marker, Point::After, "0,1,1"),
        ] {
            proxy.cut_at(at.clone(), point);
            insert("INSERT INTO rows VALUES (1)").await.expect_err("it breaks");
            assert!(proxy.sprung(), "{at:?} {point:?}");
            let rows = server.query(&database, "SELECT string_agg(n::text, ',' ORDER BY n) FROM rows").await;
            assert_eq!(rows, there, "{at:?} {point:?}");
        }
        insert("INSERT INTO rows VALUES (2)").await.expect("it breaks once");
        proxy.cut_at(At::Request(1), Point::After);
        insert("INSERT INTO rows VALUES (3)").await.expect("that was the 0th");
        assert!(!proxy.sprung());
        proxy.wait_open(0).await;
    }

    #[tokio::test]
    async fn a_request_is_held_while_the_test_acts() {
        let Some((server, proxy, database)) = world().await else { return };
        for (point, there) in [(Point::Before, "0"), (Point::After, "1")] {
            let gate = proxy.hold_at(At::Request(0), point);
            let insert = server.try_query_at(proxy.port(), &database, "INSERT INTO rows VALUES (1)");
            let (inserted, ()) = tokio::join!(insert, async {
                gate.wait_held(1).await;
                assert_eq!(server.query(&database, "SELECT count(*) FROM rows").await, there);
                proxy.cut();
                proxy.wait_open(0).await;
                gate.release();
            });
            inserted.expect_err("it was cut");
        }
    }
}
