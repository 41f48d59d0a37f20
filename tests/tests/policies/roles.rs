//! The three roles.

/// Who does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opens incarnations, writes, offers, closes.
    Writer,
    /// Subscribes, reads, acknowledges.
    Consumer,
    /// Audits, sweeps, drops.
    Sweeper,
}

impl Role {
    /// All of them, in the order in which they play.
    pub const ALL: [Role; 3] = [Role::Writer, Role::Consumer, Role::Sweeper];

    /// The name of its policy.
    pub fn name(self) -> &'static str {
        match self {
            Role::Writer => "writer",
            Role::Consumer => "consumer",
            Role::Sweeper => "sweeper",
        }
    }

    /// The same, as a name begins.
    pub fn title(self) -> &'static str {
        match self {
            Role::Writer => "Writer",
            Role::Consumer => "Consumer",
            Role::Sweeper => "Sweeper",
        }
    }
}
