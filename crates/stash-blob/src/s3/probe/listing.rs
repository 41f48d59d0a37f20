//! Listings: whole, in order, page by page.

use futures::future::try_join_all;

use super::{
    finding::{Check, Finding},
    site::{Pages, Site},
    step::Found,
};

/// Keys a page.
const PAGE: i32 = 7;

/// Names that sort differently by bytes than by folders or by letters, and enough of them for some pages; in the order
/// of their bytes.
fn names() -> Vec<String> {
    let odd = ["B", "a", "a-b", "a.b", "a/b", "a/c/d", "a0", "a=b", "a_b", "b"];
    let mut names: Vec<String> = odd.iter().map(|name| format!("list/{name}")).collect();
    names.extend((0..15).map(|number| format!("list/n{number:02}")));
    names.sort();
    names
}

/// Puts some names, and lists them in small pages.
pub(super) async fn listing(site: &Site, found: &mut Found<'_>) {
    let names = names();
    if let Err(failed) = try_join_all(names.iter().rev().map(|name| site.put(name, &b"x"[..]))).await {
        return found.failed(Check::ListPages, &failed);
    }
    match site.list("list/", Some(PAGE), None).await {
        Ok(pages) => judge(&names, &pages).into_iter().for_each(|finding| found.add(finding)),
        Err(failed) => found.failed(Check::ListPages, &failed),
    }
    let (before, after) = names.split_at(names.len() / 2);
    let start = before.last().map(String::as_str);
    match site.list("list/", None, start).await {
        Ok(pages) => {
            let got: Vec<String> = pages.into_iter().flatten().collect();
            found.of(Check::ListStartAfter, got == after, format!("{} of {} keys", got.len(), after.len()));
        }
        Err(failed) => found.failed(Check::ListStartAfter, &failed),
    }
}

/// Whether the pages have each name once, and in order.
fn judge(names: &[String], pages: &Pages) -> [Finding; 2] {
    let got: Vec<&String> = pages.iter().flatten().collect();
    let mut sorted = got.clone();
    sorted.sort();
    let whole = sorted.iter().copied().eq(names);
    let largest = pages.iter().map(Vec::len).max().unwrap_or(0);
    let mut detail = format!("{} keys in {} pages of up to {largest}", got.len(), pages.len());
    if !whole {
        detail += &format!(", of {} that are there", names.len());
    }
    [Finding::of(Check::ListPages, whole, detail), Finding::of(Check::ListOrder, got == sorted, "")]
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Answer, *};

    fn judged(pages: &[&[usize]]) -> [Answer; 2] {
        let names = names();
        let page = |page: &&[usize]| page.iter().map(|&at| names[at].clone()).collect();
        judge(&names[..4], &pages.iter().map(page).collect()).map(|finding| finding.result)
    }

    #[test]
    fn pages_are_whole_if_each_key_comes_once_and_right_if_in_order() {
        use Answer::{No, Yes};
        assert_eq!(judged(&[&[0, 1], &[2, 3]]), [Yes, Yes]);
        assert_eq!(judged(&[&[0, 1, 2, 3]]), [Yes, Yes]);
        assert_eq!(judged(&[&[0, 2], &[1, 3]]), [Yes, No]);
        assert_eq!(judged(&[&[0, 1], &[3]]), [No, Yes]);
        assert_eq!(judged(&[&[0, 1], &[1, 2, 3]]), [No, Yes]);
    }

    #[test]
    fn names_stand_in_the_order_of_their_bytes() {
        let names = names();
        assert_eq!(names.len(), 25);
        assert!(names.windows(2).all(|two| two[0].as_bytes() < two[1].as_bytes()));
    }
}
