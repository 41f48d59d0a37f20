//! A state in a few words.

use std::fmt::Write;

use crate::check::Told;
use crate::protocol::Protocol;
use crate::state::{Holder, Part, State};

impl Told for Protocol {
    fn tell(&self, state: &State) -> String {
        told(self, state)
    }
}

fn told(model: &Protocol, state: &State) -> String {
    let rules = model.scenario(state).rules;
    let mut told =
        format!("      U {} ({:?}), inputs from {}", state.head.upper, state.head.status, state.compacted);
    if !rules.up_to.is_empty() || rules.seals {
        let _ = write!(told, ", up to {}, seals {}", rules.up_to, rules.seals);
    }
    for one in &state.consumers {
        let _ = write!(told, "; read up to {}{}", one.acked, if one.present { "" } else { ", away" });
    }
    for row in &state.rows {
        let _ = write!(told, "; row [{}, {})..{}", row.lower, row.upper, row.extent);
    }
    for (by, one) in state.incarnations.iter().enumerate().filter(|(_, one)| one.matters()) {
        let open = if one.row.open { "open" } else { "closed" };
        let (replica, as_of, resolved) = (one.replica, one.row.as_of, one.row.resolved);
        let _ = write!(told, "\n        i{by} of replica {replica} at {as_of}, {open}, resolved {resolved}");
        match &one.process {
            None => told.push_str(", no process"),
            Some(process) => {
                for batch in &process.queue {
                    let (description, floor, stage) = (batch.description, batch.floor, batch.stage);
                    let _ = write!(told, ", {stage:?} {description} floor {floor}");
                }
                if let Some(saw) = &process.saw {
                    let _ = write!(told, ", decided at {}", saw.head.upper);
                }
            }
        }
        if let Some(late) = &one.flying {
            let _ = write!(told, ", late commit of {}", late.batch.description);
        }
        one.parts.iter().for_each(|part| told.push_str(&owners(part)));
    }
    told
}

fn owners(part: &Part) -> String {
    let holder = match part.holder {
        Holder::Nobody => "",
        Holder::Upload => " uploading",
        Holder::Offer => " in the offer",
        Holder::Ledger => " given up",
    };
    let flags = [
        (part.landing, " landing"),
        (part.stored, " stored"),
        (part.linked, " linked"),
        (part.queued, " queued"),
        (part.lost, " lost"),
        (part.listed, " listed"),
        (part.planned, " judged garbage"),
    ];
    let mut told = format!(", part {}:{holder}", part.time);
    flags.into_iter().filter(|(is, _)| *is).for_each(|(_, word)| told.push_str(word));
    told
}
