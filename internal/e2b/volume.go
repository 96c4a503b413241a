package e2b

import (
	"errors"
	"net/http"

	"linus/internal/job"
)

// volumeSize is the size of volumes that clients make: the protocol has no size.
const volumeSize = "10G"

// volumeText is a volume as clients see it. Its token opens nothing: its files are only reachable
// in sandboxes.
type volumeText struct {
	ID    string `json:"volumeID"`
	Name  string `json:"name"`
	Token string `json:"token"`
}

func volumeOf(v job.VolumeInfo) volumeText { return volumeText{v.ID, v.Name, "none"} }

// volumes serves requests about volumes.
func (s *server) volumes(w http.ResponseWriter, r *http.Request, at, id string) error {
	var v job.VolumeInfo
	var err error
	switch at {
	case "GET volumes":
		all, err := s.Engine.Volumes(r.Context())
		list := []volumeText{}
		for _, v := range all {
			list = append(list, volumeOf(v))
		}
		if err == nil {
			respond(w, http.StatusOK, list)
		}
		return err
	case "POST volumes":
		var in struct {
			Name string `json:"name"`
		}
		if err := decode(r, &in); err != nil {
			return err
		}
		if v, err = s.Engine.CreateVolume(r.Context(), job.VolumeSpec{Name: in.Name, Size: volumeSize}); err == nil {
			respond(w, http.StatusCreated, volumeOf(v))
		}
	case "GET volumes/{id}":
		if v, err = s.Engine.Volume(r.Context(), id); err == nil {
			respond(w, http.StatusOK, volumeOf(v))
		}
	case "DELETE volumes/{id}":
		if _, err = s.Engine.RemoveVolume(r.Context(), id); err == nil {
			w.WriteHeader(http.StatusNoContent)
		}
	default:
		return errUnknown(r)
	}
	if errors.Is(err, job.ErrNotFound) {
		return &refusal{http.StatusNotFound, "there is no such volume"}
	}
	return err
}
