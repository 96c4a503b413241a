package intake

// startedBy returns what runs a file of this name, or files in a directory of this name, without
// being told to: because a directory is entered or opened, a shell or session starts, or git does
// its work. Files that need a command to run, such as a Makefile, do not count, nor do files that
// contain only settings. Names must be folded; a slash separates a directory from what is in it.
func startedBy(name string) string {
	switch name {
	case ".envrc", "mise.toml", ".mise.toml", ".mise", ".config/mise":
		return "direnv or mise, as the directory is entered"
	case ".profile", ".login", ".logout", ".inputrc", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases",
		".zshenv", ".zshrc", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".mkshrc", ".cshrc", ".tcshrc",
		".config/fish", ".config/nushell", ".config/powershell", "documents/powershell", "documents/windowspowershell":
		return "a shell, as it begins"
	case ".xinitrc", ".xprofile", ".xsession", ".xsessionrc", ".pam_environment", ".config/autostart", ".config/systemd", ".config/environment.d",
		"library/launchagents", "programs/startup", "autorun.inf", "desktop.ini":
		return "a session, as somebody logs in or opens the directory"
	case ".ssh", ".rhosts", ".shosts", ".forward", ".procmailrc":
		return "ssh or a server, as somebody connects"
	case ".gitconfig", ".config/git", ".husky", ".githooks", ".pre-commit-config.yaml",
		"lefthook.yml", "lefthook.yaml", ".lefthook.yml", ".lefthook.yaml", ".lefthook":
		return "git, as it commits or looks"
	case ".vscode", ".idea", ".fleet", ".zed", ".devcontainer", ".devcontainer.json", ".vimrc", ".exrc", ".gvimrc", ".nvimrc", ".nvim.lua", ".config/nvim", ".emacs", ".emacs.d", ".dir-locals.el", ".dir-locals-2.el":
		return "an editor, as it opens the directory"
	case ".claude", ".cursor", ".codex", ".gemini", ".mcp.json":
		return "an agent, as it begins"
	case ".gdbinit", ".lldbinit", ".pdbrc":
		return "a debugger, as it begins"
	}
	return ""
}
