//! A way to the server that is cut where a test says: it reads what the client sends, message by message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// What is done to the next statement that has the marker in it, as it is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Nothing.
    None = 0,
    /// It reaches the server, whose answer is lost with the connection.
    Answer = 1,
    /// The connection is lost, and the statement reaches the server when the test lets it.
    Late = 2,
}

/// A running proxy; it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct State {
    cut: AtomicU8,
    marker: std::sync::Mutex<Vec<u8>>,
    bound: AtomicU64,
    released: Notify,
    /// The server has dealt with a statement whose connection was cut.
    settled: Notify,
}

impl Proxy {
    pub(crate) async fn start(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State::default());
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&state);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", server)).await.expect("the server");
                connections.spawn(connection(client, server, Arc::clone(&shared)));
            }
        });
        Proxy { port, state, _tasks: tasks }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Does this to the next statement that binds `marker`.
    pub(crate) fn cut(&self, cut: Cut, marker: &str) {
        *self.state.marker.lock().expect("a marker") = marker.as_bytes().to_vec();
        self.state.cut.store(cut as u8, Ordering::SeqCst);
    }

    /// Lets a late statement reach the server, and waits until the server has dealt with it.
    pub(crate) async fn release(&self) {
        self.state.released.notify_one();
        self.settled().await;
    }

    /// Waits until the server has dealt with the statement that was cut.
    pub(crate) async fn settled(&self) {
        self.state.settled.notified().await;
    }

    /// How many statements were bound so far.
    pub(crate) fn bound(&self) -> u64 {
        self.state.bound.load(Ordering::SeqCst)
    }
}

async fn connection(client: TcpStream, server: TcpStream, state: Arc<State>) {
    client.set_nodelay(true).expect("set");
    server.set_nodelay(true).expect("set");
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (lost, cut) = tokio::sync::oneshot::channel();
    let (dealt, over) = tokio::sync::oneshot::channel();
    let answers = answers(from_server, to_client, (cut, dealt), Arc::clone(&state));
    tokio::join!(statements(from_client, to_server, (lost, over), Arc::clone(&state)), answers);
}

/// Reads one message with its head; the first has no kind.
async fn message(from: &mut OwnedReadHalf, first: bool) -> std::io::Result<Vec<u8>> {
    let mut message = vec![0; if first { 4 } else { 5 }];
    from.read_exact(&mut message).await?;
    let at = message.len() - 4;
    let len = u32::from_be_bytes(message[at..].try_into().expect("four bytes"));
    let mut body = vec![0; usize::try_from(len).expect("a length") - 4];
    from.read_exact(&mut body).await?;
    message.extend(body);
    Ok(message)
}

/// Passes on what the client sends, up to where it is cut.
async fn statements(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    (lost, over): (tokio::sync::oneshot::Sender<()>, tokio::sync::oneshot::Receiver<()>),
    state: Arc<State>,
) {
    let mut first = true;
    let mut cut = Cut::None;
    let mut kept = Vec::new();
    while let Ok(message) = message(&mut from, first).await {
        // The request for TLS has no kind either.
        let asks_tls = first && message[4..8] == 80_877_103u32.to_be_bytes();
        let kind = if first { 0 } else { message[0] };
        first = asks_tls;
        if kind == b'B' {
            state.bound.fetch_add(1, Ordering::SeqCst);
            let marker = state.marker.lock().expect("a marker").clone();
            let marked = !marker.is_empty() && message.windows(marker.len()).any(|window| window == marker);
            if marked {
                cut = match state.cut.swap(0, Ordering::SeqCst) {
                    1 => Cut::Answer,
                    2 => Cut::Late,
                    _ => Cut::None,
                };
            }
        }
        kept.extend(message);
        if cut != Cut::None && kind == b'S' {
            let _ = lost.send(());
            if cut == Cut::Late {
                drop(from);
                state.released.notified().await;
            }
            to.write_all(&kept).await.expect("the server reads");
            // It is kept open meanwhile: the server must not notice that nobody reads.
            let _ = over.await;
            return;
        }
        if cut == Cut::None {
            if to.write_all(&kept).await.is_err() {
                return;
            }
            kept.clear();
        }
    }
}

/// Passes on what the server answers, up to where it is cut.
async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    (mut cut, dealt): (tokio::sync::oneshot::Receiver<()>, tokio::sync::oneshot::Sender<()>),
    state: Arc<State>,
) {
    let mut buffer = vec![0; 65536];
    loop {
        tokio::select! {
            biased;
            lost = &mut cut => {
                if lost.is_err() {
                    return;
                }
                let _ = to.shutdown().await;
                drop(to);
                break;
            }
            read = from.read(&mut buffer) => match read {
                Ok(len) if len > 0 => {
                    if to.write_all(&buffer[..len]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
    // The server is ready for the next statement: it has dealt with this one.
    let mut seen = Vec::new();
    loop {
        match from.read(&mut buffer).await {
            Ok(len) if len > 0 => seen.extend_from_slice(&buffer[..len]),
            _ => break,
        }
        if seen.len() >= 6 && seen[seen.len() - 6..seen.len() - 1] == [b'Z', 0, 0, 0, 5] {
            break;
        }
    }
    let _ = dealt.send(());
    state.settled.notify_one();
}
