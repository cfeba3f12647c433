//! Writes the model's tensors as safetensors.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::backend::{Backend, Slot, TensorInfo};
use crate::error::TrainError;

/// The file that a rank writes in the directory of a dump.
pub fn dump_path(directory: &Path, rank: usize) -> PathBuf {
    directory.join(format!("rank-{rank}.safetensors"))
}

/// Writes parameters and buffers under their names, and makes the directory if there is none.
pub(crate) fn dump(directory: &Path, rank: usize, backend: &mut dyn Backend) -> Result<(), TrainError> {
    let path = dump_path(directory, rank);
    let failed = |source| TrainError::Dump { rank, path: path.clone(), source };
    fs::create_dir_all(directory).map_err(failed)?;
    let parameters = backend.parameters().iter().cloned().enumerate().map(|(id, info)| (Slot::Parameter(id), info));
    let buffers = backend.buffers().iter().cloned().enumerate().map(|(number, info)| (Slot::Buffer(number), info));
    let slots: Vec<(Slot, TensorInfo)> = parameters.chain(buffers).collect();
    let mut tensors: Vec<(TensorInfo, Vec<u8>)> = Vec::new();
    for (slot, info) in slots {
        let mut bytes = Vec::new();
        let read = backend.access(slot, &mut |values| bytes.extend_from_slice(bytemuck::cast_slice(values)));
        read.map_err(|source| TrainError::Backend { rank, source })?;
        tensors.push((info, bytes));
    }
    let invalid = |error: safetensors::SafeTensorError| failed(io::Error::other(error.to_string()));
    let views = tensors.iter().map(|(info, bytes)| {
        let view = TensorView::new(Dtype::F32, info.shape.clone(), bytes)?;
        Ok((info.name.as_str(), view))
    });
    let views = views.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
    let content = safetensors::serialize(views, None).map_err(invalid)?;
    fs::write(&path, content).map_err(failed)
}
