package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"linus/internal/lab/state"
	"linus/internal/lab/systemd"
)

// hostEnv returns the NAME=value environment of the lab's SSH sessions and systemd units.
func hostEnv(s *state.State) []string {
	return []string{
		"PATH=" + s.BinDir() + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + s.HomeDir(), "PVELAB_DIR=" + s.Dir, sessionVariable + "=" + s.Dir,
		// Where linus's scripts look for what has a fixed place on a Proxmox host.
		"LINUS_HOST_DIR=" + filepath.Join(s.HomeDir(), "linus"), "LINUS_LOCK_DIR=" + s.Path("locks"), "LINUS_PVE_DIR=" + s.Path("etc", "pve"),
		"LINUS_PROC_DIR=" + s.Path("proc"), "IMAGE_DIR=" + s.Path("images"),
		"LINUS_QEMU_DIR=" + s.QemuDir(), "LINUS_UNIT_DIR=" + unitDir(s), "LINUS_DPKG_STATUS=" + s.Path("dpkg-status"),
		"PERL5LIB=" + s.Path("perl"),
		// Guests use the machine's programs, or cannot reach a server to install packages from.
		"VM_BOOTSTRAP=none",
	}
}

// unitDir is where the host's systemd keeps its unit files.
func unitDir(s *state.State) string {
	if s.Config.RealSystemd {
		return "/etc/systemd/system"
	}
	return s.Path("etc", "systemd", "system")
}

// units returns the manager of the host's simulated systemd.
func (l *Lab) units() systemd.Manager {
	return systemd.Manager{Dir: systemd.Dir(l.Dir), Binary: l.Config.Binary}
}

// Reboot is a hard reset of the lab's host: its sessions, units and VMs end, files stay, and its
// sshd is up again when Reboot returns.
func (l *Lab) Reboot(ctx context.Context) error {
	return l.alone(ctx, func() error {
		if _, m, _ := l.Member(l.Config.Node); !m.Down.IsZero() {
			return fmt.Errorf("node %s is down: bring it up instead", l.Config.Node)
		}
		if err := l.powerCut(ctx); err != nil {
			return err
		}
		return l.start(ctx)
	})
}

// start boots the host's systemd or container and starts its sshd.
func (l *Lab) start(ctx context.Context) error {
	if l.Config.RealSystemd {
		return l.startContainer(ctx)
	}
	if err := startSSHD(ctx, l.State); err != nil {
		return err
	}
	return l.units().Boot()
}

// powerCut ends the host's sshd, sessions, units and VMs.
func (l *Lab) powerCut(ctx context.Context) error {
	if l.Config.RealSystemd {
		if !l.outside() {
			return errInside
		}
		if err := l.container().Stop(ctx); err != nil {
			return err
		}
		if err := l.forgetProcesses(); err != nil {
			return err
		}
	}
	return errors.Join(stopSSHD(l.State), l.units().Reboot(), l.endCalls(ctx), l.stopVMs(ctx))
}
