//! The network between the processes of a replica: what was minted goes out, shares come in, as real wire frames.
//!
//! Messages are delayed, so they overtake one another; some arrive twice, some long after their incarnation ended, and
//! some not at all: then the receiver learns that it lost its peer, and its replica is torn down. A message goes to
//! whoever has the address when it arrives, so a message of an old incarnation meets the new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use stash::Minted;
use stash_types::IncarnationId;
use tokio::sync::mpsc;

use crate::chance::Concern;
use crate::life::Life;
use crate::world::{World, lock, pause};

/// A process of a replica that renders a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) sink: usize,
    pub(crate) replica: usize,
    pub(crate) process: usize,
}

/// What is sent.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// The minting worker chose a description.
    Minted(Minted),
    /// A share, as a wire frame.
    Share(Bytes),
    /// A message to this process was lost.
    PeerLost,
}

/// A message on its way.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) incarnation: IncarnationId,
    /// Whether it is the second copy of a message.
    pub(crate) copy: bool,
    pub(crate) message: Message,
}

/// Who has which address.
#[derive(Debug, Default)]
pub(crate) struct Network {
    boxes: Mutex<BTreeMap<Address, mpsc::UnboundedSender<Packet>>>,
}

impl Network {
    /// Takes an address over; whoever had it gets nothing any more.
    pub(crate) fn listen(&self, at: Address) -> mpsc::UnboundedReceiver<Packet> {
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&self.boxes).insert(at, sender);
        receiver
    }

    fn deliver(&self, to: Address, packet: Packet) {
        if let Some(sender) = lock(&self.boxes).get(&to) {
            let _ = sender.send(packet);
        }
    }
}

/// Sends a message from a process.
pub(crate) async fn send(
    world: &Arc<World>,
    life: &Life,
    to: Address,
    incarnation: IncarnationId,
    message: Message,
) {
    life.gate().await;
    life.count_call();
    if life.is_dead() {
        return std::future::pending().await;
    }
    let (delays, lost) = {
        let mut chance = world.chance(Concern::Network);
        let rates = world.schedule.rates;
        let faulty = world.is_faulty();
        let mut delay = |most: u64| chance.between(0, most);
        let mut delays = vec![delay(12)];
        let second = delay(1500);
        if faulty && chance.per_mille(rates.doubled_message) {
            delays.push(second);
        }
        if faulty && chance.per_mille(rates.delayed_message) {
            delays = vec![chance.between(200, 6000)];
        }
        let lost = faulty && chance.per_mille(rates.lost_message);
        (delays, lost)
    };
    let what = match &message {
        Message::Minted(minted) => format!("minted {}", minted.description),
        Message::Share(frame) => format!("share of {} bytes", frame.len()),
        Message::PeerLost => "peer lost".to_owned(),
    };
    let packet = Packet { incarnation, copy: false, message };
    if lost {
        world.fault(life.name(), "message lost", &what);
        let packet = Packet { message: Message::PeerLost, ..packet };
        return deliver_later(world, 300, to, packet);
    }
    match delays.as_slice() {
        [delay] if *delay >= 200 => {
            world.fault(life.name(), "message delayed", format!("{what}, {delay} ms"))
        }
        [_, _] => world.fault(life.name(), "message doubled", &what),
        _ => {}
    }
    for (n, delay) in delays.into_iter().enumerate() {
        deliver_later(world, delay, to, Packet { copy: n > 0, ..packet.clone() });
    }
}

fn deliver_later(world: &Arc<World>, delay: u64, to: Address, packet: Packet) {
    let on_its_way = Arc::clone(world);
    world.spawn(async move {
        pause(delay).await;
        on_its_way.network.deliver(to, packet);
    });
}
