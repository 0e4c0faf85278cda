//! Changes inputs a little: the part of a fuzzer that needs no instrumented compiler.

use rand::{RngExt as _, rngs::StdRng};

/// Longest input that is made.
pub const LONGEST: usize = 4096;
/// Numbers at which code changes its mind, as bytes.
const EDGES: [&[u8]; 8] = [
    &[0],
    &[0x7f],
    &[0x80],
    &[0xff],
    &[0xff; 4],
    &[0xff, 0xff, 0xff, 0x7f],
    &[0xff; 9],
    &[0, 0, 0, 0],
];

/// Returns a changed input: of one of the corpus, or of two of them, with one to eight changes.
pub fn mutate(rng: &mut StdRng, corpus: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut data = choose(rng, corpus).cloned().unwrap_or_default();
    for _ in 0..rng.random_range(1..=8) {
        change(rng, &mut data, corpus, words);
    }
    data.truncate(LONGEST);
    data
}

fn choose<'a, T>(rng: &mut StdRng, of: &'a [T]) -> Option<&'a T> {
    (!of.is_empty()).then(|| &of[rng.random_range(0..of.len())])
}

/// Makes one change.
fn change(rng: &mut StdRng, data: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&str]) {
    let at = rng.random_range(0..=data.len());
    let end = (at + rng.random_range(0..=16)).min(data.len());
    match rng.random_range(0..9) {
        0 => data.insert(at, rng.random()),
        1 => drop(data.splice(at..end, [])),
        2 if at < data.len() => data[at] = rng.random(),
        3 if at < data.len() => data[at] ^= 1 << rng.random_range(0..8),
        4 => drop(data.splice(at..at, choose(rng, &EDGES).map_or(&[][..], |edge| edge).to_vec())),
        // A piece twice.
        5 => {
            let piece = data[at..end].to_vec();
            let to = rng.random_range(0..=data.len());
            data.splice(to..to, piece);
        }
        6 => {
            if let Some(other) = choose(rng, corpus) {
                let from = rng.random_range(0..=other.len());
                let to = (from + rng.random_range(0..=64)).min(other.len());
                data.splice(at..at, other[from..to].to_vec());
            }
        }
        // Bytes from nowhere.
        7 => drop(
            data.splice(
                at..at,
                (0..rng.random_range(1..32))
                    .map(|_| rng.random())
                    .collect::<Vec<u8>>(),
            ),
        ),
        _ => {
            if let Some(word) = choose(rng, words) {
                let replaced = if rng.random() { at..end } else { at..at };
                data.splice(replaced, word.bytes());
            }
        }
    }
}

/// Returns the smallest input near this one of which `fails` still holds, after a bounded number of
/// tries.
pub fn shrink(data: &[u8], mut fails: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let (mut best, mut tries) = (data.to_vec(), 2000_u32);
    let mut piece = best.len().div_ceil(2).max(1);
    loop {
        let (mut at, mut shorter) = (0, false);
        while at < best.len() && tries > 0 {
            tries -= 1;
            let end = (at + piece).min(best.len());
            let candidate = [&best[..at], &best[end..]].concat();
            if fails(&candidate) {
                (best, shorter) = (candidate, true);
            } else {
                at = end;
            }
        }
        if tries == 0 || (piece == 1 && !shorter) {
            return best;
        }
        if !shorter {
            piece = piece.div_ceil(2).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn a_seed_gives_the_same_inputs_again_and_they_differ() {
        let inputs = |seed| {
            let mut rng = StdRng::seed_from_u64(seed);
            (0..50)
                .map(|_| mutate(&mut rng, &[b"[Global]\n".to_vec()], &["Zone"]))
                .collect::<Vec<_>>()
        };
        assert_eq!(inputs(3), inputs(3));
        assert_ne!(inputs(3), inputs(4));
        let distinct: std::collections::BTreeSet<_> = inputs(3).into_iter().collect();
        assert!(distinct.len() > 40, "{}", distinct.len());
    }

    #[test]
    fn an_input_shrinks_to_what_matters() {
        let data = b"some long text with a needle and more behind it".to_vec();
        assert_eq!(shrink(&data, |data| data.windows(6).any(|part| part == b"needle")), b"needle");
        assert_eq!(shrink(b"all", |data| data.len() == 3), b"all");
        assert_eq!(shrink(b"", |_| true), b"");
    }
}
