"""The commands of `gpuprof`: one file each, with a `Command` that `cli.COMMANDS` lists."""
