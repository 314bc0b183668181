//! A micro-batch as tensors. Position arithmetic lives here and nowhere else: the logits at position `p` speak of the
//! token at `p + 1`, so the response token `t` of a row with a prompt of `P` tokens is read at `P + t − 1`.

use tch::{Device, Kind, TchError, Tensor};

use crate::train::{MicroBatch, TrainRow};

/// Tensors of a micro-batch.
pub(super) struct Rows {
    /// Token ids `[rows, width]`, padded on the right.
    pub(super) tokens: Tensor,
    /// Where in the flattened `[rows · width]` the chosen response tokens are predicted, `[n]`.
    pub(super) index: Tensor,
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
        let width = micro.width;
        let longest = micro.rows.iter().map(|i| all[*i].response.len()).max().unwrap_or(0);
        let mut tokens = vec![0i64; micro.rows.len() * width];
        let (mut index, mut targets, mut temperatures, mut place) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (r, row) in micro.rows.iter().map(|i| all[*i]).enumerate() {
            let line = &mut tokens[r * width..(r + 1) * width];
            for (slot, token) in line.iter_mut().zip(row.prompt.iter().chain(&row.response)) {
                *slot = i64::from(*token);
            }
            // The engine's capture counts temperature 0 as 1.
            let temperature = if row.temperature == 0.0 { 1.0 } else { row.temperature };
            for (t, token) in row.response.iter().enumerate().filter(|(t, _)| chosen(row, *t)) {
                index.push((r * width + row.prompt.len() + t - 1) as i64);
                targets.push(i64::from(*token));
                temperatures.push(temperature);
                place.push((r * longest + t) as i64);
            }
        }
        let to = |t: Tensor| t.f_to_device(device);
        Ok(Self {
            tokens: to(Tensor::f_from_slice(&tokens)?.f_reshape([micro.rows.len() as i64, width as i64])?)?,
            index: to(Tensor::f_from_slice(&index)?)?,
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
        assert_eq!(ints(&laid.tokens), [10, 11, 12, 20, 21, 13, 30, 31, 32, 0]);
        // Row 0: token 21 stands at 4, read at 3. Row 1 (offset 5): tokens at 1, 2, 3, read at 0, 1, 2.
        assert_eq!(ints(&laid.index), [3, 5, 6, 7]);
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
}
