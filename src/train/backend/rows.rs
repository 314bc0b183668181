//! A micro-batch as tensors. Position arithmetic lives here and nowhere else: the logits at position `p` speak of the
//! token at `p + 1`, so the response token `t` of a row with a prompt of `P` tokens is read at `P + t − 1`.

use tch::{Device, Kind, TchError, Tensor};

use super::policy::Input;
use crate::train::{MicroBatch, TrainRow, pack, pack_branches, shared_prefix};

/// The rows `which` of `all` in micro-batches.
pub(super) fn packed(all: &[&TrainRow], which: &[usize], token_budget: usize) -> Vec<MicroBatch> {
    let lengths: Vec<usize> = which.iter().map(|i| all[*i].len()).collect();
    let prompts: Vec<&[u32]> = which.iter().map(|i| all[*i].prompt.as_slice()).collect();
    let mut micro = match shared_prefix(&prompts, &lengths) {
        0 => pack(&lengths, token_budget),
        prefix => pack_branches(&lengths, prefix, token_budget),
    };
    for row in micro.iter_mut().flat_map(|m| &mut m.rows) {
        *row = which[*row];
    }
    micro
}

/// Tensors of a micro-batch.
pub(super) struct Rows {
    /// What runs through the model, and where the chosen response tokens are predicted.
    pub(super) input: Input,
    /// The chosen response tokens, `[n]`.
    pub(super) targets: Tensor,
    /// Their temperatures, `[n, 1]`.
    pub(super) temperatures: Tensor,
    /// Where they go in the flattened grid `[rows · longest response]`, `[n]`.
    place: Tensor,
    rows: i64,
    longest: i64,
    device: Device,
}

impl Rows {
    /// Lays out the rows `micro.rows` of `all`, choosing the response tokens for which `chosen` says so.
    pub(super) fn new(
        all: &[&TrainRow],
        micro: &MicroBatch,
        chosen: &dyn Fn(&TrainRow, usize) -> bool,
        device: Device,
    ) -> Result<Self, TchError> {
        let (width, prefix) = (micro.width, micro.prefix);
        let longest = micro.rows.iter().map(|i| all[*i].response.len()).max().unwrap_or(0);
        let (mut tokens, mut branches) = (Vec::new(), Vec::new());
        if let (1.., Some(first)) = (prefix, micro.rows.first()) {
            tokens.extend(all[*first].prompt[..prefix].iter().map(|token| i64::from(*token)));
        }
        let (mut index, mut targets, mut temperatures, mut place) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (r, row) in micro.rows.iter().map(|i| all[*i]).enumerate() {
            // Where the row's own tokens begin, as if its prefix stood right before them.
            let start = tokens.len() - prefix;
            let own = row.prompt[prefix..].iter().chain(&row.response);
            tokens.extend(own.map(|token| i64::from(*token)));
            if prefix == 0 {
                tokens.resize((r + 1) * width, 0);
            } else {
                branches.push(row.len() - prefix);
            }
            // The engine's capture counts temperature 0 as 1.
            let temperature = if row.temperature == 0.0 { 1.0 } else { row.temperature };
            for (t, token) in row.response.iter().enumerate().filter(|(t, _)| chosen(row, *t)) {
                index.push((start + row.prompt.len() + t - 1) as i64);
                targets.push(i64::from(*token));
                temperatures.push(temperature);
                place.push((r * longest + t) as i64);
            }
        }
        let to = |t: Tensor| t.f_to_device(device);
        let shape = if prefix == 0 {
            [micro.rows.len() as i64, width as i64]
        } else {
            [1, tokens.len() as i64]
        };
        Ok(Self {
            input: Input {
                tokens: to(Tensor::f_from_slice(&tokens)?.f_reshape(shape)?)?,
                index: to(Tensor::f_from_slice(&index)?)?,
                prefix,
                branches,
            },
            targets: to(Tensor::f_from_slice(&targets)?)?,
            temperatures: to(Tensor::f_from_slice(&temperatures)?.f_reshape([-1, 1])?)?,
            place: to(Tensor::f_from_slice(&place)?)?,
            rows: micro.rows.len() as i64,
            longest: longest as i64,
            device,
        })
    }

    /// Spreads `[n]` values over the grid `[rows, longest response]`; 0 where nothing was chosen.
    pub(super) fn grid(&self, flat: &Tensor) -> Result<Tensor, TchError> {
        Tensor::f_zeros([self.rows * self.longest], (flat.kind(), self.device))?
            .f_index_copy(0, &self.place, flat)?
            .f_reshape([self.rows, self.longest])
    }

    /// A grid from numbers per row and response token.
    pub(super) fn fill(&self, value: &dyn Fn(usize, usize) -> f64, lengths: &[usize]) -> Result<Tensor, TchError> {
        let longest = self.longest as usize;
        let mut out = vec![0f32; self.rows as usize * longest];
        for (r, length) in lengths.iter().enumerate() {
            for t in 0..*length {
                out[r * longest + t] = value(r, t) as f32;
            }
        }
        Tensor::f_from_slice(&out)?
            .f_reshape([self.rows, self.longest])?
            .f_to_device(self.device)
    }

    /// A grid read back as numbers per row, cut to the rows' lengths.
    pub(super) fn read(&self, grid: &Tensor, lengths: &[usize]) -> Result<Vec<Vec<f64>>, TchError> {
        let flat = Vec::<f64>::try_from(
            grid.f_to_kind(Kind::Double)?
                .f_to_device(Device::Cpu)?
                .f_reshape([-1])?,
        )?;
        let longest = self.longest as usize;
        Ok(lengths
            .iter()
            .enumerate()
            .map(|(r, n)| flat[r * longest..r * longest + n].to_vec())
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::batch::tests::row;
    use crate::train::pack;

    /// Off by one here, and the last token would never train and the prompt's last would get its advantage.
    #[test]
    fn every_response_token_is_read_one_position_before_it() {
        let mut long = row(&[10, 11, 12], &[20, 21], None);
        long.loss_mask = vec![false, true];
        long.temperature = 0.5;
        let short = row(&[13], &[30, 31, 32], None);
        let rows = [&long, &short];
        let micro = pack(&rows.map(TrainRow::len), 100).remove(0);
        assert_eq!((micro.rows.as_slice(), micro.width), (&[0, 1][..], 5));
        let laid = Rows::new(&rows, &micro, &|r, t| r.loss_mask[t], Device::Cpu).unwrap();
        let ints = |t: &Tensor| Vec::<i64>::try_from(t.flatten(0, -1)).unwrap();
        assert_eq!(ints(&laid.input.tokens), [10, 11, 12, 20, 21, 13, 30, 31, 32, 0]);
        // Row 0: token 21 stands at 4, read at 3. Row 1 (offset 5): tokens at 1, 2, 3, read at 0, 1, 2.
        assert_eq!(ints(&laid.input.index), [3, 5, 6, 7]);
        assert_eq!(ints(&laid.targets), [21, 30, 31, 32]);
        assert_eq!(ints(&laid.place), [1, 3, 4, 5]);
        let flat = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0]);
        let grid = laid.grid(&flat).unwrap();
        assert_eq!(
            laid.read(&grid, &[2, 3]).unwrap(),
            [vec![0.0, 1.0], vec![2.0, 3.0, 4.0]]
        );
        assert_eq!(
            Vec::<f32>::try_from(laid.temperatures.flatten(0, -1)).unwrap(),
            [0.5, 1.0, 1.0, 1.0]
        );
    }

    #[test]
    fn a_shared_prefix_stands_once_and_each_row_is_read_behind_it() {
        let prompts = [vec![1, 2, 3, 4, 10], vec![1, 2, 3, 4, 11, 12]];
        let rows = [row(&prompts[0], &[20, 21], None), row(&prompts[1], &[30], None)];
        let all = [&rows[0], &rows[1]];
        let micro = packed(&all, &[0, 1], 100).remove(0);
        assert_eq!((micro.rows.as_slice(), micro.prefix), (&[0, 1][..], 4));
        let laid = Rows::new(&all, &micro, &|_, _| true, Device::Cpu).unwrap();
        let ints = |t: &Tensor| Vec::<i64>::try_from(t.flatten(0, -1)).unwrap();
        assert_eq!(ints(&laid.input.tokens), [1, 2, 3, 4, 10, 20, 21, 11, 12, 30]);
        assert_eq!(laid.input.branches, [3, 3]);
        // Token 20 is read at 10, which stands at 4; 21 at 20; 30 at 12.
        assert_eq!(ints(&laid.input.index), [4, 5, 8]);
        assert_eq!(ints(&laid.targets), [20, 21, 30]);
    }
}
