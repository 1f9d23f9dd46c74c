"""The image commands of `holdfast`. stdout is data, stderr is talk."""
