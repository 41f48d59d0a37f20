//! Nouns of Stash: ids, frontiers, descriptions, shares, descriptors, clock and id source.
