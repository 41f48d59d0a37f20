//! The protocol of Stash as pure state machines: minting, share merge, accept, trim and drop.
