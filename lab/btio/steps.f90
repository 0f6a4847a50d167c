!> Steps of a computation on several nodes, as training has them: a time in which all compute, which
!> takes no processor here, then an all-reduce of megabytes that all wait for. Meanwhile 8 bytes go
!> to and fro between the first two ranks, as other small messages would.
!>
!> While a file of the name `--beside` exists, something else is at work on the network, a
!> checkpoint for instance, and steps and round trips count apart. What arrives is checked.
!>
!> Its exit code: 0 all was right, 1 a message or a sum was not, 2 could not be run.
program steps
  use, intrinsic :: iso_fortran_env, only: int64
  use mpi_f08
  use arguments, only: whole, word
  use equations, only: dp
  use failure, only: fail, refuse, exit_not_verified
  use json, only: json_type
  use posix, only: end_with, nap
  use samples, only: samples_type
  implicit none

  character(*), parameter :: usage = 'usage: steps --seconds S --reduce-bytes N ' // &
      '[--compute-ms N] [--pause-ms N] [--beside PATH] [--report PATH]'
  integer, parameter :: value_bytes = 8
  integer, parameter :: goes_on = 1, is_last = 2
  !< Tags of round trips.
  integer, parameter :: alone = 0, beside = 1
  !< Places of samples: of what nothing else was beside on the network, and of what something was.
  integer, parameter :: probes = 1000
  !< Sums looked at after a step, spread over all of them, besides the first and the last.

  integer :: rank, ranks, seconds = 0, reduce_bytes = 0, compute_ms = 1000, pause_ms = 5
  integer(int64), allocatable :: values(:)
  character(:), allocatable :: report, flag
  logical :: is_right = .true.
  type(samples_type), dimension(alone:beside) :: step_times, reduces, trips

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call read_options()
  call run()
  call MPI_Allreduce(MPI_IN_PLACE, is_right, 1, MPI_LOGICAL, MPI_LAND, MPI_COMM_WORLD)
  if (rank == 0) call tell()
  call MPI_Finalize()
  if (.not. is_right) call end_with(exit_not_verified)

contains

  subroutine read_options()
    character(:), allocatable :: name
    integer :: i

    report = ''
    flag = ''
    do i = 1, command_argument_count(), 2
      name = word(i)
      if (i == command_argument_count()) call refuse(name // ': a value is missing; ' // usage)
      select case (name)
      case ('--seconds')
        seconds = whole(name, word(i + 1), 1)
      case ('--reduce-bytes')
        reduce_bytes = whole(name, word(i + 1), value_bytes)
      case ('--compute-ms')
        compute_ms = whole(name, word(i + 1), 0)
      case ('--pause-ms')
        pause_ms = whole(name, word(i + 1), 0)
      case ('--beside')
        flag = word(i + 1)
      case ('--report')
        report = word(i + 1)
      case default
        call refuse(name // ': unknown; ' // usage)
      end select
    end do
    if (ranks < 2) call refuse('two ranks at least are needed, for the messages between them')
    if (seconds == 0 .or. reduce_bytes == 0) &
        call refuse('--seconds and --reduce-bytes are needed; ' // usage)
    if (mod(reduce_bytes, value_bytes) /= 0) call refuse('--reduce-bytes: a multiple of 8')
  end subroutine read_options

  !> Rank 0 keeps the time, and tells the others whether a step is the last one.
  subroutine run()
    integer :: code, step
    real(dp) :: begin, t
    logical :: ends
    integer :: place

    allocate (values(reduce_bytes / value_bytes), stat=code)
    if (code /= 0) call fail('no memory for what is reduced')
    call MPI_Barrier(MPI_COMM_WORLD)
    begin = MPI_Wtime()
    ends = .false.
    step = 0
    do while (.not. ends)
      step = step + 1
      t = MPI_Wtime()
      ends = t - begin >= seconds
      place = place_now()
      call MPI_Bcast(ends, 1, MPI_LOGICAL, 0, MPI_COMM_WORLD)
      if (rank == 0) call compute(t + compute_ms / 1000.0_dp)
      if (rank == 1) call answer()
      call reduce(step, place)
      call step_times(place)%add(MPI_Wtime() - t)
    end do
  end subroutine run

  !> Whether something else is at work, as rank 0 sees it: it alone is asked.
  integer function place_now()
    logical :: is_beside

    is_beside = .false.
    if (rank == 0 .and. flag /= '') inquire (file=flag, exist=is_beside)
    place_now = merge(beside, alone, is_beside)
  end function place_now

  !> Round trips until a time; the last one says that it is.
  subroutine compute(until_s)
    real(dp), intent(in) :: until_s
    integer(int64) :: ball, number
    integer :: tag, place
    real(dp) :: t

    number = 0
    tag = goes_on
    do while (tag == goes_on)
      number = number + 1
      place = place_now()
      t = MPI_Wtime()
      if (t >= until_s) tag = is_last
      call MPI_Send(number, 1, MPI_INTEGER8, 1, tag, MPI_COMM_WORLD)
      call MPI_Recv(ball, 1, MPI_INTEGER8, 1, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
      call trips(place)%add(MPI_Wtime() - t)
      is_right = is_right .and. ball == -number
      if (tag == goes_on) call nap(min(pause_ms / 1000.0_dp, max(0.0_dp, until_s - MPI_Wtime())))
    end do
  end subroutine compute

  subroutine answer()
    type(MPI_Status) :: status
    integer(int64) :: ball

    status%MPI_TAG = goes_on
    do while (status%MPI_TAG == goes_on)
      call MPI_Recv(ball, 1, MPI_INTEGER8, 0, MPI_ANY_TAG, MPI_COMM_WORLD, status)
      call MPI_Send(-ball, 1, MPI_INTEGER8, 0, status%MPI_TAG, MPI_COMM_WORLD)
    end do
  end subroutine answer

  subroutine reduce(step, place)
    integer, intent(in) :: step, place
    integer(int64) :: sum_right
    real(dp) :: t

    values = step + rank
    t = MPI_Wtime()
    call MPI_Allreduce(MPI_IN_PLACE, values, size(values), MPI_INTEGER8, MPI_SUM, MPI_COMM_WORLD)
    call reduces(place)%add(MPI_Wtime() - t)
    sum_right = int(step, int64) * ranks + ranks * (ranks - 1) / 2
    is_right = is_right .and. values(size(values)) == sum_right .and. &
        all(values(1::max(1, size(values) / probes)) == sum_right)
  end subroutine reduce

  subroutine tell()
    type(json_type) :: json

    call json%begin(report)
    call json%text('program', 'steps')
    call json%truth('right', is_right)
    call json%whole('ranks', ranks)
    call json%whole('reduce_bytes', reduce_bytes)
    call json%whole('compute_ms', compute_ms)
    call step_times(alone)%tell(json, 'step')
    call step_times(beside)%tell(json, 'step_beside')
    call reduces(alone)%tell(json, 'reduce')
    call reduces(beside)%tell(json, 'reduce_beside')
    call trips(alone)%tell(json, 'round_trip')
    call trips(beside)%tell(json, 'round_trip_beside')
    call json%finish()
  end subroutine tell

end program steps
