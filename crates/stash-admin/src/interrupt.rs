//! Ctrl-C and SIGTERM as a state that commands look at.

use std::process;

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
};

/// The exit code of a command that was interrupted, as shells know it.
pub const EXIT_CODE: u8 = 130;

/// Whether somebody asked the process to end. The first signal is told to the command; the second ends the
/// process where it stands, which is what a crash would do and heals as one.
#[derive(Debug)]
pub struct Interrupt {
    told: watch::Receiver<bool>,
    _listener: JoinSet<()>,
}

impl Interrupt {
    /// Listens from now on. Must be called on a tokio runtime.
    pub fn listen() -> std::io::Result<Interrupt> {
        let (tell, told) = watch::channel(false);
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut listener = JoinSet::new();
        listener.spawn(async move {
            for heard in 0.. {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if heard > 0 {
                    process::exit(EXIT_CODE.into());
                }
                eprintln!("interrupted: ending cleanly; once more ends at once");
                tell.send_replace(true);
            }
        });
        Ok(Interrupt { told, _listener: listener })
    }

    /// Whether a signal came.
    pub fn came(&self) -> bool {
        *self.told.borrow()
    }

    /// Returns once a signal came.
    pub async fn wait(&self) {
        let mut told = self.told.clone();
        if told.wait_for(|told| *told).await.is_err() {
            // The listener lives as long as this; without it no signal can come.
            std::future::pending::<()>().await;
        }
    }
}
