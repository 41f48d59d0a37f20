//! A server of the kit's own, on a thread and a runtime of its own, so that a test which computes does not stall it, and that
//! it lives across the runtimes of several tests. It ends with its handle.

use std::{io, net::TcpListener as StdListener, thread::JoinHandle};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinSet,
};
use tracing::subscriber::NoSubscriber;

#[derive(Debug)]
pub(crate) struct Background {
    port: u16,
    // Taken at the end only: dropping it is what ends the server.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Listens on a free port of the loopback, and serves each connection by a future of its own.
    pub(crate) fn listen<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> io::Result<Background>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = StdListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("stash-testkit".to_owned()).spawn(move || {
            // What goes on here is the kit's: it is not to be found in what a test hears of the system.
            let _quiet = tracing::subscriber::set_default(NoSubscriber::new());
            runtime.block_on(async move {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                let mut connections = JoinSet::new();
                let accepting = async {
                    loop {
                        // Out of files for a moment, say: the client hears of it by itself.
                        let Ok((stream, _)) = listener.accept().await else { continue };
                        let _ = stream.set_nodelay(true);
                        connections.spawn(serve(stream));
                        while connections.try_join_next().is_some() {}
                    }
                };
                tokio::select! {
                    () = accepting => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Background { port, stop: Some(stop), thread: Some(thread) })
    }

    /// Its port on 127.0.0.1.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
