package gitlab

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"

	"linus/internal/lazyregexp"
)

// Service is a program in a container of the job's VM. While the job runs, it reaches the service by its names.
type Service struct {
	Name       string            `json:"name"`
	Alias      string            `json:"alias"`
	Entrypoint []string          `json:"entrypoint"`
	Command    []string          `json:"command"`
	Variables  map[string]string `json:"variables"`
}

const maxServices = 20

var (
	imageName    = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$`)
	hostName     = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	variableName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
	registryPort = lazyregexp.New(`^([^/]*):[0-9]+/`)
)

// readServices parses CI_JOB_SERVICES.
func readServices(text string) (all []Service, err error) {
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("CI_JOB_SERVICES is not the list of a job's services: %w", err)
	}
	if len(all) > maxServices {
		return nil, fmt.Errorf("services: there are %d; a job's VM has at most %d", len(all), maxServices)
	}
	for i, s := range all {
		if !imageName.MatchString(s.Name) {
			return nil, fmt.Errorf("services[%d]: %.100q is not an image's name", i, s.Name)
		}
		for _, name := range s.aliases() {
			if !hostName.MatchString(name) {
				return nil, fmt.Errorf("services[%d].alias: %.100q is not a host's name", i, name)
			}
		}
		for name, value := range s.Variables {
			if !variableName.MatchString(name) || strings.ContainsAny(value, "\r\n") {
				return nil, fmt.Errorf("services[%d].variables: %.100q is not a name and a value of one line", i, name)
			}
		}
	}
	return all, nil
}

// aliases returns the names that were given to a service.
func (s Service) aliases() []string {
	return strings.Fields(strings.ReplaceAll(s.Alias, ",", " "))
}

// hosts returns all names of a service: its aliases, and those derived from its image as
// docs.gitlab.com/ci/services says: without the tag and the registry's port, with slashes replaced by two
// underscores or a hyphen.
func (s Service) hosts() []string {
	image, _, _ := strings.Cut(s.Name, "@")
	if slash, colon := strings.LastIndexByte(image, '/'), strings.LastIndexByte(image, ':'); colon > slash {
		image = image[:colon]
	}
	image = registryPort.ReplaceAllString(image, "$1/")
	names := append(s.aliases(), strings.ReplaceAll(image, "/", "__"), strings.ReplaceAll(image, "/", "-"))
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return !hostName.MatchString(name) })
}

// Ready returns the script that prepares a job's VM: its directories and its services. It contains the
// services' variables, and is passed like the script of a stage.
func (j *Job) Ready(builds, caches string) (string, error) {
	services, err := readServices(j.Variable("CI_JOB_SERVICES"))
	if err != nil {
		return "", &JobError{err}
	}
	var b strings.Builder
	fmt.Fprintf(&b, `set -eu
for dir in %s %s; do
  [[ -d $dir && -w $dir ]] || sudo -n install -d -o "$(id -un)" -g "$(id -gn)" -m 0755 -- "$dir"
done
for program in git gitlab-runner; do
  command -v "$program" >/dev/null || echo "warning: the VM has no $program, which fetches sources, or keeps caches and artifacts: use a template that has it"
done
`, builds, caches)
	if len(services) == 0 {
		return b.String(), nil
	}
	fmt.Fprintf(&b, servicesHead, NoDocker)
	for i, s := range services {
		name := fmt.Sprintf("linus-service-%d", i)
		args := []string{"run", "--detach", "--name", name, "--network", "linus-services", "--env-file", "/dev/stdin"}
		hosts := s.hosts()
		for _, host := range hosts {
			args = append(args, "--network-alias", host)
		}
		command := s.Command
		if len(s.Entrypoint) > 0 {
			args, command = append(args, "--entrypoint", s.Entrypoint[0]), append(slices.Clone(s.Entrypoint[1:]), command...)
		}
		args = append(append(args, "--", s.Name), command...)
		fmt.Fprintf(&b, "echo %s\n", shellescape.Quote("service "+s.Name+": "+strings.Join(hosts, ", ")))
		fmt.Fprintf(&b, "\"${docker[@]}\" rm --force %s >/dev/null 2>&1 || true\n", name)
		fmt.Fprintf(&b, "printf '%%s\\n' %s | \"${docker[@]}\" %s >/dev/null\n", shellescape.QuoteCommand(j.variablesOf(s)), shellescape.QuoteCommand(args))
		fmt.Fprintf(&b, "up %s %s\n", name, shellescape.QuoteCommand(hosts))
	}
	return b.String(), nil
}

// variablesOf returns a service's variables: the non-secret ones of the job, and its own.
func (j *Job) variablesOf(s Service) []string {
	lines := []string{"CI=true"}
	for _, name := range j.shared {
		value, given := j.env["CUSTOM_ENV_"+name]
		if _, own := s.Variables[name]; given && !own && variableName.MatchString(name) && !strings.ContainsAny(value, "\r\n") {
			lines = append(lines, name+"="+value)
		}
	}
	for name, value := range s.Variables {
		lines = append(lines, name+"="+value)
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// servicesHead begins the script of services: it makes their network, and defines up, which waits for a
// service. A service that does not answer is only a warning, as in GitLab's own executors.
const servicesHead = `docker=(docker)
docker version >/dev/null 2>&1 || docker=(sudo -n docker)
if ! "${docker[@]}" version >/dev/null 2>&1; then
  echo 'the job has services, and its VM has no Docker: use a template that has it (linus template build --bootstrap "base docker")' >&2
  exit %d
fi
"${docker[@]}" network inspect linus-services >/dev/null 2>&1 || "${docker[@]}" network create linus-services >/dev/null
up() { # <container> <host>...
  local -r name=$1
  shift
  local address ports port
  address=$("${docker[@]}" inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$name")
  if [[ ! $address =~ ^[0-9.]+$ ]]; then
    echo "warning: $name has ended; its last lines:"
    "${docker[@]}" logs --tail 20 "$name" 2>&1 || true
    return
  fi
  sudo -n sed -i "/ # $name\$/d" /etc/hosts # of an attempt before
  echo "$address $* # $name" | sudo -n tee -a /etc/hosts >/dev/null
  ports=$("${docker[@]}" inspect --format '{{range $port, $_ := .Config.ExposedPorts}}{{$port}} {{end}}' "$name")
  for port in $ports; do
    [[ $port == */tcp ]] || continue
    local -r until=$((SECONDS + 30))
    until (exec 4<>"/dev/tcp/$address/${port%%/tcp}") 2>/dev/null; do
      if ((SECONDS >= until)); then
        echo "warning: $name does not answer at port ${port%%/tcp} after 30 s; its last lines:"
        "${docker[@]}" logs --tail 20 "$name" 2>&1 || true
        break
      fi
      sleep 0.5
    done
    return
  done
}
`
