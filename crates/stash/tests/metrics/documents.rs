//! The dashboard and the alert rules ask for what there is: each metric by its name, with labels that it has.

use std::collections::BTreeSet;

use serde_json::Value;
use stash::{METRICS, Metric, MetricKind};

/// Labels that Prometheus itself gives every series.
const ALWAYS: [&str; 2] = ["instance", "job"];

fn deployed(path: &str) -> String {
    let path = format!("{}/../../deploy/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn dashboard() -> Value {
    serde_json::from_str(&deployed("grafana/stash.json")).expect("it is JSON")
}

/// Every query of the dashboard, with its panel's title.
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let panels = dashboard["panels"].as_array().expect("panels");
    let of = |panel: &Value| {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        let said = targets.into_iter().map(|target| target["expr"].as_str().expect("a query").to_owned());
        said.map(|query| (title.clone(), query)).collect::<Vec<_>>()
    };
    panels.iter().flat_map(of).collect()
}

/// The queries of the rules, with the alerts' names.
fn rules() -> Vec<(String, String)> {
    let text = deployed("prometheus/alerts.yml");
    let mut name = String::new();
    let mut all = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(of) = line.strip_prefix("- alert: ") {
            of.clone_into(&mut name);
        } else if let Some(query) = line.strip_prefix("expr: ") {
            all.push((name.clone(), query.to_owned()));
        }
    }
    all
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The metrics that a query asks for, each with the labels it selects by.
fn asked(query: &str) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    for (at, _) in query.match_indices("stash_") {
        if query[..at].ends_with(is_word) {
            continue;
        }
        let rest = &query[at..];
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let selected =
            rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inner, _)| inner);
        let labels = selected.split(',').filter(|one| !one.is_empty()).map(|one| {
            let end = one.find(|c| !is_word(c)).unwrap_or(one.len());
            one[..end].to_owned()
        });
        all.push((name.to_owned(), labels.collect()));
    }
    all
}

/// The metric a series is of: those of a histogram have endings of their own.
fn metric(name: &str) -> Option<&'static Metric> {
    let by_name = |name: &str| METRICS.iter().find(|metric| metric.name == name);
    let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|ending| {
        by_name(name.strip_suffix(ending)?).filter(|metric| metric.kind == MetricKind::Histogram)
    });
    by_name(name).filter(|metric| metric.kind != MetricKind::Histogram).or(of_histogram)
}

/// What is wrong with a query.
fn wrong(query: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
        if query.matches(open).count() != query.matches(close).count() {
            wrong.push(format!("{open}{close} do not match"));
        }
    }
    let asked = asked(query);
    if asked.is_empty() {
        wrong.push("it asks for nothing of Stash".to_owned());
    }
    let mut known: BTreeSet<&str> = ALWAYS.into_iter().collect();
    for (name, selected) in &asked {
        let Some(metric) = metric(name) else {
            wrong.push(format!("there is no metric {name}"));
            continue;
        };
        known.extend(metric.labels);
        if name.ends_with("_bucket") {
            known.insert("le");
        }
        let strange = selected
            .iter()
            .filter(|label| !metric.labels.contains(&label.as_str()) && !ALWAYS.contains(&label.as_str()));
        wrong.extend(strange.map(|label| format!("{name} has no label {label}")));
    }
    for by in query.split("by (").skip(1) {
        let labels = by.split_once(')').map_or("", |(labels, _)| labels);
        let strange = labels.split(',').map(str::trim).filter(|label| !known.contains(label));
        wrong.extend(strange.map(|label| format!("it is grouped by {label}, which nothing in it has")));
    }
    wrong
}

#[test]
fn no_panel_and_no_alert_asks_for_what_there_is_not() {
    let all = queries(&dashboard()).into_iter().chain(rules());
    let wrong: Vec<String> = all
        .flat_map(|(of, query)| wrong(&query).into_iter().map(move |what| format!("{of}: {what}: {query}")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rules().len() > 10, "the rules are found");
}

#[test]
fn queries_that_are_wrong_are_found() {
    for (query, what) in [
        ("rate(stash_blob_request_total[5m])", "no metric stash_blob_request_total"),
        ("stash_chain_upper{consumer=\"a\"}", "no label consumer"),
        ("sum by (consumer) (stash_chain_upper)", "grouped by consumer"),
        ("stash_description_parts{sink=\"a\"}", "no metric stash_description_parts"),
        ("stash_chain_upper_bucket", "no metric stash_chain_upper_bucket"),
        ("sum(stash_chain_upper", "() do not match"),
        ("up == 0", "asks for nothing"),
    ] {
        let found = wrong(query);
        assert!(found.iter().any(|found| found.contains(what)), "{query}: {found:?}");
    }
    assert_eq!(
        wrong("sum by (sink, le) (rate(stash_description_parts_bucket{sink=~\"$sink\"}[5m]))"),
        [""; 0]
    );
}

#[test]
fn the_dashboard_shows_every_metric() {
    let shown: BTreeSet<&str> = queries(&dashboard())
        .iter()
        .flat_map(|(_, query)| asked(query))
        .filter_map(|(name, _)| metric(&name))
        .map(|metric| metric.name)
        .collect();
    let hidden: Vec<&str> =
        METRICS.iter().map(|metric| metric.name).filter(|name| !shown.contains(name)).collect();
    assert_eq!(hidden, [""; 0]);
}

#[test]
fn the_dashboard_can_be_imported_into_any_grafana() {
    let dashboard = dashboard();
    assert!(dashboard["id"].is_null(), "an id would overwrite another dashboard");
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let names: BTreeSet<&str> = variables.iter().filter_map(|variable| variable["name"].as_str()).collect();
    let mut ids = BTreeSet::new();
    let mut rows = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: its id stands twice");
        if panel["type"] == "row" {
            rows.push(title);
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in panel["targets"].as_array().expect("queries") {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            for used in target["expr"].as_str().expect("a query").split('$').skip(1) {
                let name: String = used.chars().take_while(|c| is_word(*c)).collect();
                assert!(
                    name.starts_with("__") || names.contains(name.as_str()),
                    "{title}: no variable {name}"
                );
            }
        }
    }
    assert_eq!(
        rows,
        ["Health at a glance", "Writing", "Reading", "Deleting", "Memory", "Store and catalog", "Cost"]
    );
}

#[test]
fn the_guide_names_alerts_that_there_are() {
    let guide = deployed("README.md");
    let monitoring =
        guide.split_once("## Monitoring").map_or("", |(_, rest)| rest.split("## ").next().unwrap_or(rest));
    let alerts: BTreeSet<String> = rules().into_iter().map(|(name, _)| name).collect();
    let named: Vec<&str> =
        monitoring.split('`').skip(1).step_by(2).filter(|code| code.starts_with("Stash")).collect();
    assert!(named.len() > 3, "they are found");
    for name in named {
        assert!(alerts.contains(name), "{name} is no alert");
    }
}
