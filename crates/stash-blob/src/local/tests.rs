use std::sync::Mutex;

use super::*;

/// Stops a PUT or delete at a step: with an error of the disk, or as if the process died there.
#[derive(Default)]
pub(super) struct Probe(Mutex<Option<(Step, Stop)>>);

#[derive(Clone, Copy)]
pub(super) enum Stop {
    Refuse(Errno),
    Die,
}

impl Probe {
    pub(super) fn pass(&self, step: Step) -> Result<(), Errno> {
        let stop = *self.0.lock().expect("no test panics with the lock");
        match stop {
            Some((at, Stop::Refuse(errno))) if at == step => Err(errno),
            // Unwinds past all clean-up and without a message: what a kill leaves on the disk.
            Some((at, Stop::Die)) if at == step => std::panic::resume_unwind(Box::new("died")),
            _ => Ok(()),
        }
    }
}
