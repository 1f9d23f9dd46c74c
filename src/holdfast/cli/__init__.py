"""The command `holdfast`: opens stores, reads settings, shows what there is. stdout is data, stderr is talk."""
