"""The commands of `gpuprof`: one file each, of the command's name, which `cli.COMMANDS` lists."""
