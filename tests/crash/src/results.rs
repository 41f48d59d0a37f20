//! What the consumer has recorded: one file for each delivery, made whole by a rename.
//!
//! A delivery that comes again must be the identical batch, since the recorded one may have been used. Only a
//! stretch that holds nothing may come again longer: the chain was extended meanwhile.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};

use crate::feed::Content;

/// The folder of what was recorded.
#[derive(Clone, Debug)]
pub struct Results {
    folder: PathBuf,
}

fn name(lower: u64, upper: u64) -> String {
    format!("{lower:016x}-{upper:016x}")
}

fn bounds(name: &str) -> anyhow::Result<(u64, u64)> {
    let (lower, upper) = name.split_once('-').with_context(|| format!("result file {name}"))?;
    Ok((u64::from_str_radix(lower, 16)?, u64::from_str_radix(upper, 16)?))
}

fn text_of(content: &Content) -> String {
    content.iter().map(|((time, (key, pad)), diff)| format!("{time} {key} {diff} {pad}\n")).collect()
}

impl Results {
    /// The results in `folder`, which is made where it is absent. What was not finished is removed.
    pub fn open(folder: &Path) -> anyhow::Result<Results> {
        fs::create_dir_all(folder)?;
        let results = Results { folder: folder.to_owned() };
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ext| ext == "tmp") {
                fs::remove_file(path)?;
            }
        }
        Ok(results)
    }

    /// The bounds of what was recorded, in order.
    pub fn recorded(&self) -> anyhow::Result<Vec<(u64, u64)>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let name = name.to_str().context("a result file's name")?;
            if !name.ends_with(".tmp") {
                all.push(bounds(name)?);
            }
        }
        all.sort_unstable();
        Ok(all)
    }

    /// Records a delivery; whether it had been recorded before. Returns once it is durable.
    pub fn record(&self, lower: u64, upper: u64, content: &Content) -> anyhow::Result<bool> {
        let text = text_of(content);
        let recorded = self.recorded()?;
        let known = recorded.iter().find(|(from, to)| *from < upper && lower < *to);
        if let Some(&(from, to)) = known {
            let before = fs::read_to_string(self.folder.join(name(from, to)))?;
            let longer = from == lower && to <= upper && before.is_empty() && text.is_empty();
            if !longer {
                ensure!(
                    (from, to) == (lower, upper),
                    "[{lower}, {upper}) was delivered, but [{from}, {to}) had been delivered before"
                );
                ensure!(before == text, "[{lower}, {upper}) was delivered again with other content");
                return Ok(true);
            }
            if to == upper {
                return Ok(true);
            }
            fs::rename(self.folder.join(name(from, to)), self.folder.join(name(lower, upper)))?;
            return Ok(true);
        }
        let temp = self.folder.join(name(lower, upper)).with_extension("tmp");
        let mut file = File::create(&temp)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temp, self.folder.join(name(lower, upper)))?;
        File::open(&self.folder)?.sync_all()?;
        Ok(false)
    }

    /// Everything that was delivered, with the upper of the last delivery; refuses a gap.
    pub fn content(&self) -> anyhow::Result<(u64, Content)> {
        let (mut due, mut all) = (0, Content::new());
        for (lower, upper) in self.recorded()? {
            ensure!(lower == due, "the deliveries have a gap or overlap: [{lower}, {upper}) follows {due}");
            due = upper;
            for line in fs::read_to_string(self.folder.join(name(lower, upper)))?.lines() {
                let [time, key, diff, pad] = line.splitn(4, ' ').collect::<Vec<_>>()[..] else {
                    bail!("a result line that cannot be read: {line}");
                };
                let time: u64 = time.parse()?;
                ensure!((lower..upper).contains(&time), "time {time} in the delivery [{lower}, {upper})");
                let before = all.insert((time, (key.parse()?, pad.to_owned())), diff.parse()?);
                ensure!(before.is_none(), "a row was delivered twice: {line}");
            }
        }
        Ok((due, all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(time: u64, diff: i64) -> Content {
        Content::from([((time, (1, "x".to_owned())), diff)])
    }

    #[test]
    fn the_identical_batch_again_is_recognised_and_another_one_refused() {
        let folder = tempfile::tempdir().unwrap();
        let results = Results::open(folder.path()).unwrap();
        assert!(!results.record(0, 4, &content(2, 1)).unwrap());
        assert!(results.record(0, 4, &content(2, 1)).unwrap());
        assert!(results.record(0, 4, &content(2, 2)).is_err());
        assert!(results.record(0, 5, &content(2, 1)).is_err());
        assert!(results.record(2, 4, &content(2, 1)).is_err());
        assert_eq!(results.content().unwrap(), (4, content(2, 1)));
    }

    #[test]
    fn an_empty_stretch_may_come_again_longer() {
        let folder = tempfile::tempdir().unwrap();
        let results = Results::open(folder.path()).unwrap();
        assert!(!results.record(0, 4, &Content::new()).unwrap());
        assert!(results.record(0, 7, &Content::new()).unwrap());
        assert!(results.record(0, 9, &content(8, 1)).is_err());
        assert_eq!(results.content().unwrap().0, 7);
    }

    #[test]
    fn a_gap_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let results = Results::open(folder.path()).unwrap();
        results.record(0, 4, &Content::new()).unwrap();
        results.record(5, 6, &Content::new()).unwrap();
        assert!(results.content().is_err());
    }
}
