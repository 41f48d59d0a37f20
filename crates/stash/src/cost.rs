//! What requests cost: counts times prices. Pure; the prices are yours to give.
//!
//! Object stores ask money for requests by class, for bytes that leave them, and for bytes that lie there. [`Prices`] has
//! the form in which they are listed; the defaults are an example, the list prices of a large provider's standard class in
//! its first region, as they stood in 2025. Deletes and aborts are free there, and so are bytes on their way in.
//!
//! A process knows what it asked for, not what lies in the bucket over a month: storing is said as a price a month of what
//! is there now ([`Prices::month`]), beside the cost of what was done ([`Prices::of`]).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use stash_batch::Requests;

/// Bytes of what providers call a GB.
const GB: f64 = 1_073_741_824.0;

/// Prices, in one currency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prices {
    /// Of a thousand PUT, COPY, POST or LIST requests. Default 0.005.
    pub put_thousand: f64,
    /// Of a thousand GET or HEAD requests. Default 0.0004.
    pub get_thousand: f64,
    /// Of a GB that lies in the store for a month. Default 0.023.
    pub gb_month: f64,
    /// Of a GB that is read from outside of the store's region. Default 0: whoever reads is beside the store.
    pub gb_egress: f64,
}

impl Default for Prices {
    fn default() -> Prices {
        Prices { put_thousand: 0.005, get_thousand: 0.0004, gb_month: 0.023, gb_egress: 0.0 }
    }
}

/// What was not understood of prices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no price: {why}; use NAME=AMOUNT with put (a thousand PUT or LIST), get (a thousand GET), storage (a GB a month), egress (a GB), separated by commas"
)]
pub struct PriceError {
    text: String,
    why: &'static str,
}

impl FromStr for Prices {
    type Err = PriceError;

    /// Reads `put=0.005,get=0.0004,storage=0.023,egress=0.09`; what is not named keeps its default.
    fn from_str(text: &str) -> Result<Prices, PriceError> {
        let mut prices = Prices::default();
        for item in text.split(',') {
            let refuse = |why| PriceError { text: item.to_owned(), why };
            let (name, amount) = item.split_once('=').ok_or_else(|| refuse("it has no ="))?;
            let amount: f64 = amount.trim().parse().map_err(|_| refuse("the amount is no number"))?;
            if !amount.is_finite() || amount < 0.0 {
                return Err(refuse("the amount is negative or not finite"));
            }
            match name.trim() {
                "put" => prices.put_thousand = amount,
                "get" => prices.get_thousand = amount,
                "storage" => prices.gb_month = amount,
                "egress" => prices.gb_egress = amount,
                _ => return Err(refuse("no such price")),
            }
        }
        Ok(prices)
    }
}

/// What requests cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The requests themselves.
    pub requests: f64,
    /// The bytes that were read.
    pub egress: f64,
}

impl Cost {
    /// Both.
    pub fn total(&self) -> f64 {
        self.requests + self.egress
    }
}

#[expect(clippy::cast_precision_loss, reason = "money is approximate far above where counts lose digits")]
fn amount(count: u64) -> f64 {
    count as f64
}

impl Prices {
    /// What these requests cost.
    pub fn of(&self, requests: &Requests) -> Cost {
        let Requests { puts, gets, heads, lists, deletes: _, aborts: _, put_bytes: _, got_bytes } = *requests;
        Cost {
            requests: amount(puts.saturating_add(lists)) / 1000.0 * self.put_thousand
                + amount(gets.saturating_add(heads)) / 1000.0 * self.get_thousand,
            egress: amount(got_bytes) / GB * self.gb_egress,
        }
    }

    /// What it costs to keep so many bytes for a month.
    pub fn month(&self, bytes: u64) -> f64 {
        amount(bytes) / GB * self.gb_month
    }
}

/// Requests in words, and what they cost: `12 PUT, 40 GET, 2 LIST, 1 DELETE, about $0.0001`.
pub struct Bill<'a> {
    /// What was asked.
    pub requests: &'a Requests,
    /// What that costs.
    pub prices: &'a Prices,
}

impl fmt::Display for Bill<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Requests { puts, gets, heads, lists, deletes, aborts, put_bytes: _, got_bytes: _ } =
            *self.requests;
        let all = [
            (puts, "PUT"),
            (gets, "GET"),
            (heads, "HEAD"),
            (lists, "LIST"),
            (deletes, "DELETE"),
            (aborts, "ABORT"),
        ];
        let mut said = false;
        for (count, name) in all.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{}{count} {name}", if said { ", " } else { "" })?;
            said = true;
        }
        if !said {
            return f.write_str("no requests");
        }
        write!(f, ", about ${}", Money(self.prices.of(self.requests).total()))
    }
}

/// An amount with the digits that matter: two of cents, or two that are not zero.
struct Money(f64);

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = [2, 3, 4, 5, 6, 7, 8].into_iter().find(|digits| self.0 * 10_f64.powi(*digits) >= 9.5);
        match digits {
            Some(digits) => write!(f, "{:.*}", usize::try_from(digits).unwrap_or(2), self.0),
            None if self.0 == 0.0 => f.write_str("0"),
            None => f.write_str("0.00000001"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: Requests = Requests {
        puts: 900,
        gets: 9_000,
        heads: 1_000,
        lists: 100,
        deletes: 5_000,
        aborts: 3,
        put_bytes: 7 << 30,
        got_bytes: 3 << 30,
    };

    #[test]
    fn requests_are_paid_by_class_and_deletes_are_free() {
        let prices = Prices { put_thousand: 5.0, get_thousand: 0.4, gb_month: 2.0, gb_egress: 9.0 };
        let cost = prices.of(&REQUESTS);
        assert!((cost.requests - (5.0 + 4.0)).abs() < 1e-9, "{cost:?}");
        assert!((cost.egress - 27.0).abs() < 1e-9, "{cost:?}");
        assert!((prices.month(3 << 29) - 3.0).abs() < 1e-9);
        let only_deletes = Requests { deletes: 9, aborts: 9, put_bytes: 9, ..Requests::default() };
        assert_eq!(prices.of(&only_deletes), Cost::default());
    }

    #[test]
    fn the_cost_of_a_sum_is_the_sum_of_the_costs() {
        let prices = Prices { gb_egress: 0.09, ..Prices::default() };
        let (one, both) = (prices.of(&REQUESTS).total(), prices.of(&REQUESTS.and(REQUESTS)).total());
        assert!((both - 2.0 * one).abs() < 1e-9);
    }

    #[test]
    fn prices_are_read_by_name_and_the_rest_keeps_its_default() {
        let prices: Prices = "put=0.01, egress=0.09".parse().expect("two prices");
        assert_eq!(prices, Prices { put_thousand: 0.01, gb_egress: 0.09, ..Prices::default() });
        for bad in ["", "put", "put=", "put=-1", "put=inf", "put=NaN", "list=1", "put=1,,get=1"] {
            assert!(bad.parse::<Prices>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_bill_names_what_there_was_and_keeps_two_digits() {
        let prices = Prices::default();
        let bill = |requests: Requests| Bill { requests: &requests, prices: &prices }.to_string();
        assert_eq!(bill(Requests::default()), "no requests");
        assert_eq!(bill(Requests { deletes: 2, ..Requests::default() }), "2 DELETE, about $0");
        let some = Requests { puts: 12, gets: 40, lists: 2, ..Requests::default() };
        assert_eq!(bill(some), "12 PUT, 40 GET, 2 LIST, about $0.000086");
        assert_eq!(bill(Requests { puts: 2_000_000, ..Requests::default() }), "2000000 PUT, about $10.00");
    }
}
